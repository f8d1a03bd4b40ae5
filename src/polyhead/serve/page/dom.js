// Elements from values. Everything that a server says comes in as text: nothing here, or anywhere, reads HTML.

/** An element with these attributes; children are nodes, or strings that become text. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same of SVG. */
export function drawing(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child); // one by one: arguments are limited
  }
  return node;
}

/** The element of this id. */
export const byId = (id) => document.getElementById(id);

/** "1 layer", "6 layers". */
export const counted = (number, word) =>
  `${number.toLocaleString("en")} ${word}${number === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;

/** A probability as it is read: never 0 or 100 % unless it is. */
export function percent(share) {
  const value = 100 * share;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  if (value < 100 && value > 99.9) return "> 99.9 %";
  return `${value.toFixed(value < 10 || value > 99 ? 1 : 0)} %`;
}

/** A number with as many digits as one reads. */
export function short(value) {
  if (!Number.isFinite(value)) return String(value);
  return Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

/** A name of the server's for people: "single_label" is "single label". */
export const spoken = (name) => name.replaceAll("_", " ");
