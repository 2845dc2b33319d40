"use strict";
// Times as the reader's clock has them.
const localTimes = (root) => {
  for (const element of root.querySelectorAll("time")) {
    const when = new Date(element.dateTime);
    if (Number.isNaN(when.getTime())) continue;
    element.textContent = when.toLocaleString([], { dateStyle: "medium", timeStyle: "exact" in element.dataset ? "medium" : "short" });
    element.title = element.dateTime;
  }
};
localTimes(document);
