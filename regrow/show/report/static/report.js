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
    const size = Math.abs(value); // as search/numbers.py
    if (size < 1e-4 || size >= 1e15) return value.toExponential(4).replace(/\.?0+e/, "e");
    if (size >= 1e5) return value.toFixed(0);
    let digits = 5;
    while (digits < 14 && Number.isInteger(Number(value.toPrecision(digits)))) digits += 1;
    return String(Number(value.toPrecision(digits)));
  };
  const time = (seconds) => {
    if (seconds === null) return "";
    if (seconds < 60) return `${seconds < 1 ? Number(seconds.toPrecision(2)) : seconds.toFixed(1)} s`;
    const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
    const minutes = Math.floor(whole / 60);
    return minutes < 60 ? `${minutes}:${two(whole % 60)}` : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)}`;
  };

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
  const columns = data.columns, AT_A_TIME = 60, groups = $("tr", null, { class: "groups" }), top = $("tr");
  const GROUPS = { parameter: "parameters", objective: "metrics", metric: "metrics" };
  const widths = columns.map(() => $("col")); // of the table once it is `fixed`: the row of groups has none of its own
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
    inside.append($("p", "Parameters", { class: "label" }), settings);
    const measured = columns.map((column, place) => [column, trial.cells[place]])
      .filter(([column, value]) => GROUPS[column.kind] === "metrics" && value !== null && value !== undefined)
      .map(([column, value]) => `${column.name}: ${short(value)}`);
    if (measured.length) {
      const list = $("pre", measured.join("\n"), { tabindex: "0", "aria-label": "Its metrics" });
      inside.append($("p", "Metrics", { class: "label" }), list);
    }
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
      inside.append($("p", "Machine use", { class: "label" }));
      const uses = $("ul", null, { class: "use" });
      for (const a of trial.attempts.filter((a) => a.begun)) uses.append($("li", `attempt ${a.number}: ${a.use}`));
      inside.append(uses);
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
        cell.append($("i", null, { class: `s-${value.split(",")[0]}` }), value), row.append(cell);
      } else {
        const text = column.kind === "seconds" ? time(value) : short(value);
        const cell = $("td", text, { class: `${column.number ? "num" : "cut"} ${column.kind}` });
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
    for (const column of widths) column.style.width = "";
    more(AT_A_TIME);
    // As wide as the first rows need: else each row that comes as one scrolls would lay out all of them anew.
    const needed = Array.from(top.children, (cell) => cell.getBoundingClientRect().width);
    needed.forEach((width, place) => { widths[place].style.width = `${width}px`; });
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
    const cell = $("th", null, { scope: "col", "aria-sort": "none", class: `${column.number ? "num" : ""} ${column.kind}` });
    const button = $("button", column.title, { type: "button", title: column.name ?? column.title });
    // The heading of the metrics stands above the objective, which stays in view.
    const group = column.kind === "metric" ? "" : GROUPS[column.kind] ?? "", last = groups.lastChild;
    if (last && last.textContent === group && column.kind !== "objective") last.colSpan += 1;
    else groups.append(group ? $("th", group, { scope: "colgroup", class: column.kind }) : $("td"));
    button.addEventListener("click", () => {
      by = { column: place, down: by.column === place ? !by.down : column.best_is_most === true };
      for (const other of top.children) other.setAttribute("aria-sort", "none");
      cell.setAttribute("aria-sort", by.down ? "descending" : "ascending");
      arrange();
    });
    cell.append(button), top.append(cell);
  });
  const whole = $("colgroup");
  whole.append(...widths), table.prepend(whole);
  head.append(groups, top);
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
  const repaint = drawFigures({
    load: async () => {
      await runPacked();
      return data;
    },
    find: (name) => ({ figure: data.figures[name] }),
    choose: reveal,
    name: data.name,
    all: true,
  });
  window.addEventListener("beforeprint", () => { repaint(true); more(1000); });
  window.addEventListener("afterprint", () => repaint(!window.matchMedia("(prefers-color-scheme: dark)").matches));
})();
