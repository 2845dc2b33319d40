"use strict";
document.querySelector("button").onclick = async () => {
  const shown = document.querySelector("output"), began = performance.now();
  try {
    const body = document.querySelector("textarea").value;
    const answer = await fetch("predict", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    const trial = answer.headers.get("Regrow-Trial"), took = Math.round(performance.now() - began);
    shown.textContent = `${answer.status}, ${took} ms${trial ? `, trial ${trial}` : ""}\n${await answer.text()}`;
  } catch (error) { shown.textContent = String(error); }
};
