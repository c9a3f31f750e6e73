// Elements from data. Every text goes in as text, never as markup: what users wrote can't become part of the page.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. `props`: attributes, plus `on: {event: listener}`; null, false and undefined are left out. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An SVG element, likewise. */
export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Sets a text only where it differs, so that a selection in it survives. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets or removes an attribute. */
export function setAttribute(element, name, value) {
  if (value === null || value === false || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value === true ? "" : value);
  }
}

/** Makes `children` the children of `parent`; elements that stay keep their focus. */
export function setChildren(parent, children) {
  const same = children.length === parent.children.length
    && children.every((child, place) => parent.children[place] === child);
  if (!same) parent.replaceChildren(...children);
}

function fill(element, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
