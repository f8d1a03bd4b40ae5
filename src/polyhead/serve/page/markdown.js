// The Markdown of a task's card as elements: headings, paragraphs, lists, tables, code, emphasis. No HTML, no links.

import { element } from "./dom.js";

const SPAN = /(`+)(.+?)\1|\*\*(.+?)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\(([^)\s]*)\)/s;

/** The nodes of a card; its own first heading is left out where it is `title`, which stands above it already. */
export function rendered(text, title) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  if (lines[0]?.trim() === `# ${title}`) lines.shift();
  const nodes = [];
  while (lines.length) nodes.push(...block(lines));
  return nodes;
}

/** Takes the lines of the next block. */
function block(lines) {
  const line = lines[0];
  if (!line.trim()) return lines.shift() && [];
  const heading = /^(#{1,6})\s+(.*)/.exec(line);
  if (heading) {
    lines.shift();
    return [element(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2]))];
  }
  if (line.startsWith("```")) {
    lines.shift();
    const code = taken(lines, (next) => !next.startsWith("```"));
    lines.shift();
    return [element("pre", {}, code.join("\n"))];
  }
  if (line.startsWith("|")) return [table(taken(lines, (next) => next.startsWith("|")))];
  for (const [sign, list] of [
    [/^\s*[-*+]\s+/, "ul"],
    [/^\s*\d+[.)]\s+/, "ol"],
  ]) {
    if (sign.test(line)) {
      const items = taken(lines, (next) => sign.test(next) || /^\s+\S/.test(next));
      return [
        element(
          list,
          {},
          items.map((item) => element("li", {}, inline(item.replace(sign, "")))),
        ),
      ];
    }
  }
  const words = [lines.shift(), ...taken(lines, (next) => next.trim() && !/^(#{1,6}\s|```|\||\s*[-*+]\s)/.test(next))];
  return [element("p", {}, inline(words.join(" ").replace(/^>\s?/, "")))];
}

function taken(lines, isPart) {
  const own = [];
  while (lines.length && isPart(lines[0])) own.push(lines.shift());
  return own;
}

function table(lines) {
  const rows = lines.filter((line) => !/^\|[\s:|-]+$/.test(line)).map(cells);
  const head = (text) => element("th", { scope: "col" }, inline(text));
  const cell = (text, i) => (i ? element("td", {}, inline(text)) : element("th", { scope: "row" }, inline(text)));
  return element(
    "div",
    { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" },
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, (rows[0] ?? []).map(head))),
      element(
        "tbody",
        {},
        rows.slice(1).map((texts) => element("tr", {}, texts.map(cell))),
      ),
    ),
  );
}

const cells = (line) =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));

function inline(text) {
  const nodes = [];
  for (let rest = text; rest;) {
    const match = SPAN.exec(rest);
    if (!match) return [...nodes, rest];
    const [whole, , code, strong, slanted, name, address] = match;
    nodes.push(rest.slice(0, match.index));
    if (code !== undefined) nodes.push(element("code", {}, code));
    else if (strong !== undefined) nodes.push(element("strong", {}, inline(strong)));
    else if (slanted !== undefined) nodes.push(element("em", {}, inline(slanted)));
    else nodes.push(`${name} (${address})`);
    rest = rest.slice(match.index + whole.length);
  }
  return nodes;
}
