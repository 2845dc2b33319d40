(() => {
  const { plotly, look, experiment, name } = document.currentScript.dataset;
  const fetched = async (address) => (await fetch(address)).json();
  drawFigures({
    load: async () => (await Promise.all([fetched(look), runScript(plotly)]))[0],
    find: (figure) => fetched(`${experiment}/figures/${figure}`),
    choose: (number) => { location.href = `${experiment}/t/${number}`; },
    name,
  });
})();
