(() => {
  // What is marked data-live is replaced where it has changed; what was ticked, focused, opened or scrolled stays so.
  const replace = (old, fresh) => {
    localTimes(fresh);
    if (old.innerHTML === fresh.innerHTML) return;
    const ticked = new Set(Array.from(old.querySelectorAll("input:checked"), (box) => box.value));
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const same = focused && Array.from(old.querySelectorAll(focused.tagName)).indexOf(focused);
    const across = Array.from(old.querySelectorAll(".scroll"), (part) => part.scrollLeft);
    for (const box of fresh.querySelectorAll("input")) box.checked = ticked.has(box.value);
    old.replaceChildren(...fresh.childNodes);
    old.querySelectorAll(".scroll").forEach((part, place) => { part.scrollLeft = across[place] ?? 0; });
    if (focused) old.querySelectorAll(focused.tagName)[same]?.focus({ preventScroll: true });
  };
  // Returns the seconds until the page is to be refreshed again, 0 for never.
  const refresh = async () => {
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const fresh of page.querySelectorAll("[data-live]")) {
        const old = document.getElementById(fresh.id);
        if (old) replace(old, fresh);
      }
      document.body.classList.remove("stale");
      return Number(page.body.dataset.poll);
    } catch {
      document.body.classList.add("stale");
      return Number(document.body.dataset.poll);
    }
  };
  const look = async () => {
    const again = document.hidden ? Number(document.body.dataset.poll) : await refresh();
    if (again) setTimeout(look, again * 1000);
  };
  if (Number(document.body.dataset.poll)) setTimeout(look, Number(document.body.dataset.poll) * 1000);
  for (const form of document.querySelectorAll("form.asked")) {
    form.addEventListener("formdata", ({ formData }) => {
      for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
    });
    // What is ticked is in the address at once, and in the links to other pages and orders of the table.
    form.addEventListener("change", ({ target }) => {
      if (target.type !== "checkbox") return;
      const boxes = [...form.querySelectorAll("input[type=checkbox]")];
      for (const box of boxes) if (box.value === target.value) box.checked = target.checked;
      const address = new URL(location.href);
      address.searchParams.delete(target.name);
      for (const value of new Set(boxes.filter((box) => box.checked).map((box) => box.value))) address.searchParams.append(target.name, value);
      history.replaceState(null, "", address);
      refresh();
    });
  }
})();
