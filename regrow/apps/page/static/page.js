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
  const look = async () => {
    let again = Number(document.body.dataset.poll);
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, { headers: { accept: "text/html" } });
        if (!answer.ok) throw new Error(String(answer.status));
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const fresh of page.querySelectorAll("[data-live]")) {
          const old = document.getElementById(fresh.id);
          if (old) replace(old, fresh);
        }
        again = Number(page.body.dataset.poll);
        document.body.classList.remove("stale");
      } catch {
        document.body.classList.add("stale");
      }
    }
    if (again) setTimeout(look, again * 1000);
  };
  if (Number(document.body.dataset.poll)) setTimeout(look, Number(document.body.dataset.poll) * 1000);
})();
