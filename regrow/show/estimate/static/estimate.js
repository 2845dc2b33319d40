(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const repaint = drawFigures({
    load: async () => {
      await runPacked();
      return data;
    },
    find: (name) => ({ figure: data.figures[name] }),
    choose: () => {},
    name: data.name,
    all: true,
  });
  window.addEventListener("beforeprint", () => repaint(true));
  window.addEventListener("afterprint", () => repaint(!window.matchMedia("(prefers-color-scheme: dark)").matches));
})();
