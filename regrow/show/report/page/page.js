"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (tag, text, attributes = {}) => {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const short = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
    const size = Math.abs(value);
    return size < 1e-3 || size >= 1e6 ? value.toExponential(3).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(5)));
  };
  const time = (seconds) => {
    if (seconds === null) return "";
    if (seconds < 60) return `${seconds < 1 ? Number(seconds.toPrecision(2)) : seconds.toFixed(1)} s`;
    const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
    const minutes = Math.floor(whole / 60);
    return minutes < 60 ? `${minutes}:${two(whole % 60)}` : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)}`;
  };

  // Times as the reader's clock has them.
  for (const element of document.querySelectorAll("time")) {
    const when = new Date(element.dateTime);
    if (!Number.isNaN(when.getTime())) element.textContent = when.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  }

  // Copying, also from file:// and where the clipboard is not granted.
  document.addEventListener("click", async (event) => {
    if (!(event.target instanceof Element) || !event.target.matches(".copy")) return;
    const button = event.target, source = button.parentElement.querySelector("pre");
    let copied = true;
    try {
      await navigator.clipboard.writeText(source.textContent);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(source);
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      copied = document.execCommand("copy");
    }
    button.textContent = copied ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  // ---- the table of trials -----------------------------------------------------------------------------------------
  const table = document.getElementById("table"), body = table.tBodies[0], head = table.tHead;
  const search = document.getElementById("search"), shown = document.getElementById("shown");
  const sentinel = document.getElementById("sentinel");
  const columns = data.columns, AT_A_TIME = 60, top = $("tr");
  const words = data.trials.map((t) => [
    `trial ${t.cells[0]}`, ...t.cells.slice(1).map(short), ...t.attempts.flatMap((a) => [a.node, a.outcome, a.cause, a.message]),
  ].join(" ").toLowerCase());
  let order = data.trials.map((_, place) => place), written = 0, by = { column: 0, down: false };

  const compare = (a, b) => {
    const x = data.trials[a].cells[by.column], y = data.trials[b].cells[by.column];
    if (x === y) return a - b;
    if (x === null || x === undefined) return 1;  // what has no value is last either way
    if (y === null || y === undefined) return -1;
    const less = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return (by.down ? -less : less) || a - b;
  };
  const detail = (trial) => {
    const inside = $("div", null, { class: "inside" });
    const settings = $("pre", trial.config, { tabindex: "0", "aria-label": "Its configuration" });
    inside.append($("p", "Configuration", { class: "label" }), settings);
    if (trial.changes.length) {
      inside.append($("p", "What the schedule changed", { class: "label" }));
      const list = $("ul");
      for (const change of trial.changes) list.append($("li", change));
      inside.append(list);
    }
    inside.append($("p", trial.attempts.length ? "Attempts" : "No attempt has begun.", { class: "label" }));
    if (trial.attempts.length) {
      const attempts = $("table"), top = $("tr");
      const group = data.ranked ? ["workers"] : [];
      for (const name of ["attempt", ...group, "node", "steps", "took", "outcome", "why"]) top.append($("th", name, { scope: "col" }));
      attempts.append($("thead")), attempts.tHead.append(top);
      const rows = $("tbody");
      for (const a of trial.attempts) {
        const row = $("tr"), outcome = a.cause && a.cause !== a.outcome ? `${a.outcome} (${a.cause})` : a.outcome;
        const steps = a.to > a.from ? `${a.from + 1} to ${a.to}` : a.begun ? `none after ${a.from}` : "";
        for (const text of [a.number, ...group.map(() => a.workers), a.node, steps, time(a.seconds), outcome, a.message]) row.append($("td", text));
        rows.append(row);
        if (a.trace !== null) {
          const cell = $("td", null, { colspan: String(6 + group.length) });
          cell.append($("pre", data.traces[a.trace], { tabindex: "0", "aria-label": "Traceback" }));
          const under = $("tr");
          under.append(cell), rows.append(under);
        }
      }
      attempts.append(rows), inside.append(attempts);
    }
    return inside;
  };
  const toggle = (button, row, trial) => {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) { row.nextElementSibling.remove(); return; }
    const cell = $("td", null, { colspan: String(columns.length), class: "detail" }), under = $("tr");
    cell.append(detail(trial)), under.append(cell), row.after(under);
  };
  const rowOf = (trial) => {
    const row = $("tr", null, { class: trial.best ? "row best" : "row", id: `trial-${trial.cells[0]}` });
    columns.forEach((column, place) => {
      const value = trial.cells[place];
      if (place === 0) {
        const cell = $("th", null, { scope: "row" });
        const button = $("button", value, { type: "button", class: "open", "aria-expanded": "false", "aria-label": `trial ${value}: attempts` });
        button.addEventListener("click", () => toggle(button, row, trial));
        cell.append(button), row.append(cell);
      } else if (column.kind === "state") {
        const cell = $("td");
        cell.append($("i", null, { class: `s-${value}` }), value), row.append(cell);
      } else {
        const text = column.kind === "seconds" ? time(value) : short(value);
        const cell = $("td", text, { class: column.number ? "num" : "cut" });
        if (text.length > 12) cell.title = text;
        row.append(cell);
      }
    });
    return row;
  };
  const more = (count) => {
    const until = Math.min(order.length, written + count), part = document.createDocumentFragment();
    for (; written < until; written += 1) part.append(rowOf(data.trials[order[written]]));
    body.append(part);
    sentinel.textContent = written < order.length ? `${order.length - written} more, as you scroll` : "";
  };
  const fill = () => {
    body.replaceChildren();
    written = 0;
    table.classList.remove("fixed");
    for (const cell of top.children) cell.style.width = "";
    more(AT_A_TIME);
    // As wide as the first rows need: else each row that comes as one scrolls would lay out all of them anew.
    const widths = Array.from(top.children, (cell) => cell.getBoundingClientRect().width);
    widths.forEach((width, place) => { top.children[place].style.width = `${Math.ceil(width) + 2}px`; });
    table.classList.add("fixed");
    shown.textContent = order.length === data.trials.length ? `${order.length} trials` : `${order.length} of ${data.trials.length} trials`;
  };
  const arrange = () => {
    const terms = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    order = data.trials.map((_, place) => place).filter((place) => terms.every((term) => words[place].includes(term)));
    order.sort(compare);
    fill();
  };
  columns.forEach((column, place) => {
    const cell = $("th", null, { scope: "col", "aria-sort": "none", class: column.number ? "num" : "" });
    const button = $("button", column.title, { type: "button" });
    button.addEventListener("click", () => {
      by = { column: place, down: by.column === place ? !by.down : column.best_is_most === true };
      for (const other of top.children) other.setAttribute("aria-sort", "none");
      cell.setAttribute("aria-sort", by.down ? "descending" : "ascending");
      arrange();
    });
    cell.append(button), top.append(cell);
  });
  head.append(top);
  if (data.sorted_by !== null) {
    by = { column: data.sorted_by, down: columns[data.sorted_by].best_is_most };
    top.children[data.sorted_by].setAttribute("aria-sort", by.down ? "descending" : "ascending");
  }
  let waiting = 0;
  search.addEventListener("input", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(arrange); });
  new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) more(AT_A_TIME); }, { rootMargin: "900px" }).observe(sentinel);
  const reveal = (number) => {
    search.value = "";
    arrange();
    const place = order.findIndex((at) => data.trials[at].cells[0] === number);
    if (place < 0) return;
    if (place >= written) more(place - written + 1);
    const row = document.getElementById(`trial-${number}`), button = row.querySelector(".open");
    if (button.getAttribute("aria-expanded") === "false") button.click();
    row.scrollIntoView({ block: "center" });
    button.focus({ preventScroll: true });
  };
  arrange();

  // ---- the figures -------------------------------------------------------------------------------------------------
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const waitingFor = new Set(document.querySelectorAll(".plot")), near = new Set(), drawn = new Set();
  const config = (name) => ({
    responsive: true, displaylogo: false, doubleClick: "reset+autosize",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "png", scale: 2, filename: `${data.name}-${name}` },
  });
  const layoutOf = (figure, light) => ({ ...figure.layout, template: light ? data.light : data.dark, autosize: true });
  let plotly = null;
  const load = () => plotly ??= (async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const address = URL.createObjectURL(new Blob([await new Response(stream).blob()], { type: "text/javascript" }));
    await new Promise((resolve, reject) => {
      const script = $("script", undefined, { src: address });
      script.onload = resolve;
      script.onerror = () => reject(new Error("Plotly could not be loaded"));
      document.head.append(script);
    });
    URL.revokeObjectURL(address);
  })();
  const draw = async (place) => {
    const figure = data.figures[place.dataset.figure];
    await window.Plotly.newPlot(place, figure.data, layoutOf(figure, !dark.matches), config(place.dataset.figure));
    drawn.add(place);
    if (place.dataset.figure === "parallel_coordinates") brush(place);
    place.dataset.drawn = "yes";
    place.on("plotly_click", (event) => {
      const said = event.points[0] && event.points[0].customdata, number = ArrayBuffer.isView(said) || Array.isArray(said) ? said[0] : said;
      if (Number.isInteger(number)) reveal(number);
    });
  };
  // Arrays as Plotly.py packs them: the bytes of a typed array, in base64.
  const TYPES = {
    f4: Float32Array, f8: Float64Array, i1: Int8Array, i2: Int16Array, i4: Int32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array,
  };
  const unpacked = (array) => Array.isArray(array) ? array
    : Array.from(new TYPES[array.dtype](Uint8Array.from(atob(array.bdata), (c) => c.charCodeAt(0)).buffer));
  // Parallel coordinates: a selection keeps the lines through it, a double click brings all back.
  const brush = (place) => {
    const whole = data.figures[place.dataset.figure].data;
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
    for (const name of ["plotly_doubleclick", "plotly_deselect"]) place.on(name, () => keep(null));
  };
  const idle = window.requestIdleCallback ?? ((act) => setTimeout(act, 30));
  // One at a time, those in view first, when the page has nothing better to do.
  const next = () => idle(async () => {
    const place = [...near].find((one) => waitingFor.has(one)) ?? [...waitingFor][0];
    if (place === undefined) return;
    waitingFor.delete(place);
    try {
      await load();
      await draw(place);
    } catch (error) {
      place.replaceChildren($("p", `This figure could not be drawn: ${error.message}`, { class: "empty" }));
      console.error(error);
    }
    next();
  }, { timeout: 400 });
  const look = new IntersectionObserver((seen) => {
    for (const one of seen) if (one.isIntersecting) near.add(one.target); else near.delete(one.target);
  }, { rootMargin: "300px" });
  for (const place of waitingFor) look.observe(place);
  next();
  const paint = (light) => { for (const place of drawn) window.Plotly.react(place, data.figures[place.dataset.figure].data, layoutOf(data.figures[place.dataset.figure], light), config(place.dataset.figure)); };
  dark.addEventListener("change", () => paint(!dark.matches));
  window.addEventListener("beforeprint", () => { paint(true); more(1000); });
  window.addEventListener("afterprint", () => paint(!dark.matches));
})();
