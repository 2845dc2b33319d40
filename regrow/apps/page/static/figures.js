"use strict";
(() => {
  const { plotly, look } = document.currentScript.dataset;
  const dark = window.matchMedia("(prefers-color-scheme: dark)"), drawn = new Map();
  let ready = null, looks = null;
  const load = () => ready ??= Promise.all([
    new Promise((resolve, reject) => {
      const script = document.createElement("script");
      Object.assign(script, { src: plotly, onload: resolve, onerror: () => reject(new Error("Plotly could not be loaded")) });
      document.head.append(script);
    }),
    fetch(look).then((answer) => answer.json()).then((found) => { looks = found; }),
  ]);
  const paint = (place, figure) => window.Plotly.react(
    place, figure.data, { ...figure.layout, template: dark.matches ? looks.dark : looks.light, autosize: true },
    { responsive: true, displaylogo: false, doubleClick: "reset+autosize", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] },
  );
  const draw = async (place) => {
    const [answer] = await Promise.all([fetch(place.dataset.src), load()]);
    const told = await answer.json();
    place.classList.remove("wait");
    if (!told.figure) {
      place.closest(".figure").classList.add("none");
      place.textContent = told.nothing;
    } else {
      place.style.height = `${told.height}px`;
      if (told.min_width) place.style.minWidth = `${told.min_width}px`;
      await paint(place, told.figure);
      drawn.set(place, told.figure);
      place.closest(".figure").querySelector(".note").textContent = told.note;
      place.on("plotly_click", (event) => {
        const said = event.points[0]?.customdata, number = Array.isArray(said) || ArrayBuffer.isView(said) ? said[0] : said;
        if (Number.isInteger(number)) location.href = place.dataset.trial + number;
      });
    }
    place.dataset.drawn = "yes";
  };
  // One at a time, when it comes near.
  let last = Promise.resolve();
  const seen = new IntersectionObserver((all) => {
    for (const one of all.filter((entry) => entry.isIntersecting)) {
      seen.unobserve(one.target);
      last = last.then(() => draw(one.target)).catch((error) => {
        one.target.classList.remove("wait");
        one.target.textContent = `This figure could not be drawn: ${error.message}`;
      });
    }
  }, { rootMargin: "200px" });
  for (const place of document.querySelectorAll(".plot")) seen.observe(place);
  dark.addEventListener("change", () => { for (const [place, figure] of drawn) paint(place, figure); });
})();
