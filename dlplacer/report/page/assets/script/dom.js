"use strict";
// Elements are made here and nowhere else. Names only ever become text nodes, never markup.

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name in element && name !== "list" && name !== "role") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const byId = (id) => document.getElementById(id);

// A name of an op, a module or a device: isolated, so that a name in another script does not reorder its neighbours.
const named = (text, className = "name") => make("bdi", { className }, text);

function button(text, title, action, properties = {}) {
  return make("button", { type: "button", title, onclick: action, ...properties }, text);
}

function announce(text) {
  byId("announcer").textContent = text;
}
