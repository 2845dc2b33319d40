"use strict";
// Draws the page's figures one at a time: those that come near the window, and with `all` the others after those that are near.
//   load: brings Plotly's script, and the looks for light and dark      find(name): a figure, or why there is `nothing`
//   choose(number): a trial was clicked                                 name: begins the names of saved pictures
// Returns a function that repaints what is drawn, light or dark.
const runScript = (src) => new Promise((resolve, reject) => {
  const script = document.createElement("script");
  Object.assign(script, { src, onload: resolve, onerror: () => reject(new Error("Plotly could not be loaded")) });
  document.head.append(script);
});
// Plotly's script, packed in the element `plotly` of a page that is complete in itself.
const runPacked = async () => {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const address = URL.createObjectURL(new Blob([await new Response(stream).blob()], { type: "text/javascript" }));
  await runScript(address);
  URL.revokeObjectURL(address);
};
const drawFigures = ({ load, find, choose, name, all = false }) => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)"), drawn = new Map(), near = new Set();
  const waiting = new Set(document.querySelectorAll(".plot"));
  let loaded = null, looks = null, busy = false;
  const paint = (place, figure, light) => window.Plotly.react(
    place, figure.data, { ...figure.layout, template: light ? looks.light : looks.dark, autosize: true },
    {
      responsive: true, displaylogo: false, doubleClick: "reset+autosize", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      toImageButtonOptions: { format: "png", scale: 2, filename: `${name}-${place.dataset.figure}` },
    },
  );
  const repaint = (light) => { for (const [place, figure] of drawn) paint(place, figure, light); };
  const say = (place, text) => {
    const line = document.createElement("p");
    line.className = "empty";
    line.textContent = text;
    place.replaceChildren(line);
  };
  const draw = async (place) => {
    const [{ figure, nothing, height, min_width: width, note }] = await Promise.all([find(place.dataset.figure), loaded ??= load()]);
    looks ??= await loaded;
    if (!figure) {
      say(place, nothing);
    } else {
      if (height) place.style.height = `${height}px`;
      if (width) place.style.minWidth = `${width}px`;
      if (note) place.closest(".figure").querySelector(".note").textContent = note;
      await paint(place, figure, !dark.matches);
      drawn.set(place, figure);
      if (place.dataset.figure === "parallel_coordinates") brush(place, figure.data);
      place.on("plotly_click", (event) => {
        const said = event.points[0]?.customdata, number = Array.isArray(said) || ArrayBuffer.isView(said) ? said[0] : said;
        if (Number.isInteger(number) && !("logged" in place.dataset)) choose(number); // a figure of the user's has other numbers
      });
    }
    place.dataset.drawn = "yes";
  };
  // Arrays as Plotly.py packs them: the bytes of a typed array, in base64.
  const TYPES = {
    f4: Float32Array, f8: Float64Array, i1: Int8Array, i2: Int16Array, i4: Int32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array,
  };
  const unpacked = (array) => Array.isArray(array) ? array
    : Array.from(new TYPES[array.dtype](Uint8Array.from(atob(array.bdata), (c) => c.charCodeAt(0)).buffer));
  // Parallel coordinates: a selection keeps the lines through it, a double click brings all back.
  const brush = (place, whole) => {
    const numbers = whole.map((trace) => unpacked(trace.customdata)), heights = whole.map((trace) => unpacked(trace.y));
    const across = whole.map((trace) => unpacked(trace.x));
    const keep = (kept) => {
      const y = heights.map((all, t) => all.map((height, n) => (kept === null || kept.has(numbers[t][n]) ? height : null)));
      return window.Plotly.restyle(place, { y });
    };
    place.on("plotly_selected", (event) => {
      if (!event || !event.range) return;
      const [low, high] = [...event.range.y].sort((a, b) => a - b), [left, right] = [...event.range.x].sort((a, b) => a - b);
      let kept = null;
      for (let axis = Math.ceil(left); axis <= right; axis += 1) {
        const here = new Set();
        across.forEach((xs, t) => xs.forEach((x, n) => {
          if (x === axis && heights[t][n] >= low && heights[t][n] <= high) here.add(numbers[t][n]);
        }));
        kept = kept === null ? here : new Set([...kept].filter((number) => here.has(number)));
      }
      if (kept !== null) keep(kept);
    });
    for (const event of ["plotly_doubleclick", "plotly_deselect"]) place.on(event, () => keep(null));
  };
  const idle = window.requestIdleCallback ?? ((act) => setTimeout(act, 30));
  const next = () => {
    const place = [...near].find((one) => waiting.has(one)) ?? (all ? [...waiting][0] : undefined);
    if (busy || place === undefined) return;
    busy = true;
    waiting.delete(place);
    idle(async () => {
      try {
        await draw(place);
      } catch (error) {
        say(place, `This figure could not be drawn: ${error.message}`);
        console.error(error);
      }
      busy = false;
      next();
    }, { timeout: 400 });
  };
  const look = new IntersectionObserver((seen) => {
    for (const one of seen) if (one.isIntersecting) near.add(one.target); else if (all) near.delete(one.target);
    next();
  }, { rootMargin: "300px" });
  for (const place of waiting) look.observe(place);
  const fold = document.getElementById("fold");
  fold?.addEventListener("click", () => {
    const open = fold.getAttribute("aria-expanded") !== "true";
    fold.setAttribute("aria-expanded", String(open));
    document.getElementById("folded").classList.toggle("folded", !open);
  });
  dark.addEventListener("change", () => repaint(!dark.matches));
  return repaint;
};
