"use strict";

const find = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");
const fixed = (number, digits = 2) => (number === null ? "–"
  : number.toFixed(digits).replace(/^-(?=[0.]+$)/, "").replace("-", "−"));

/** Make an element. Its text cannot become markup. */
function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

function bar(fraction) {
  const filled = element("div", "bar");
  filled.style.width = `${100 * fraction}%`;
  return filled;
}

