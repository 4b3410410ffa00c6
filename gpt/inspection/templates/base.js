"use strict";

const find = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");

/** Make an element. Its text cannot become markup. */
function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

