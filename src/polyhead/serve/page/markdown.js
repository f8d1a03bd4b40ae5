// The Markdown of a task's card as elements: headings, paragraphs, lists, tables, code, emphasis. No HTML, no links.

import { element } from "./dom.js";

const LONGEST = 2000; // characters of a link's address

/** The nodes of a card; its own first heading is left out where it is `title`, which stands above it already. */
export function rendered(text, title) {
  const rest = { lines: text.replaceAll("\r\n", "\n").split("\n"), at: 0 };
  if (rest.lines[0]?.trim() === `# ${title}`) rest.at = 1;
  const nodes = [];
  while (rest.at < rest.lines.length) nodes.push(...block(rest));
  return nodes;
}

/** Takes the lines of the next block. */
function block(rest) {
  const line = rest.lines[rest.at];
  if (!line.trim()) {
    rest.at += 1;
    return [];
  }
  const heading = /^(#{1,6})\s+(.*)/.exec(line);
  if (heading) {
    rest.at += 1;
    return [element(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2]))];
  }
  if (line.startsWith("```")) {
    rest.at += 1;
    const code = taken(rest, (next) => !next.startsWith("```"));
    rest.at += 1;
    return [element("pre", {}, code.join("\n"))];
  }
  if (line.startsWith("|")) return [table(taken(rest, (next) => next.startsWith("|")))];
  for (const [sign, list] of [
    [/^\s*[-*+]\s+/, "ul"],
    [/^\s*\d+[.)]\s+/, "ol"],
  ]) {
    if (sign.test(line)) {
      const items = taken(rest, (next) => sign.test(next) || /^\s+\S/.test(next));
      return [
        element(
          list,
          {},
          items.map((item) => element("li", {}, inline(item.replace(sign, "")))),
        ),
      ];
    }
  }
  rest.at += 1;
  const words = [line, ...taken(rest, (next) => next.trim() && !/^(#{1,6}\s|```|\||\s*[-*+]\s)/.test(next))];
  return [element("p", {}, inline(words.join(" ").replace(/^>\s?/, "")))];
}

function taken(rest, isPart) {
  const start = rest.at;
  while (rest.at < rest.lines.length && isPart(rest.lines[rest.at])) rest.at += 1;
  return rest.lines.slice(start, rest.at);
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

/** Code, emphasis and links of a text; each sign is looked for once, in linear time. */
function inline(text) {
  const nodes = [];
  const find = { "*": ahead(text, "*"), "**": ahead(text, "**"), "]": ahead(text, "]"), ")": ahead(text, ")") };
  const closing = closingTicks(text);
  let start = 0;
  for (let at = 0; at < text.length; at += 1) {
    const span = spanAt(text, at, find, closing);
    if (!span) {
      if (text[at] === "`") at += runOf(text, at) - 1;
      continue;
    }
    nodes.push(text.slice(start, at), span.node);
    start = span.end;
    at = start - 1;
  }
  return [...nodes, text.slice(start)].filter((node) => node !== "");
}

/** What begins at a place, and where it ends; undefined for plain text. */
function spanAt(text, at, find, closing) {
  if (text[at] === "`") {
    const size = runOf(text, at);
    const end = closing.get(at);
    return end && { node: element("code", {}, text.slice(at + size, end)), end: end + size };
  }
  if (text.startsWith("**", at)) {
    const end = find["**"](at + 2);
    if (end > at + 2) return { node: element("strong", {}, inline(text.slice(at + 2, end))), end: end + 2 };
  } else if (text[at] === "*") {
    const end = find["*"](at + 1);
    const isWord = end > at + 1 && text[at + 1].trim();
    return isWord ? { node: element("em", {}, inline(text.slice(at + 1, end))), end: end + 1 } : undefined;
  } else if (text[at] === "[") {
    const middle = find["]"](at + 1);
    if (middle <= at + 1 || text[middle + 1] !== "(") return undefined;
    const end = find[")"](middle + 2);
    if (end < 0 || end - middle > LONGEST || /\s/.test(text.slice(middle + 2, end))) return undefined;
    return { node: `${text.slice(at + 1, middle)} (${text.slice(middle + 2, end)})`, end: end + 1 };
  }
  return undefined;
}

/** Where a sign stands next from a place on, -1 for nowhere; places that are asked for never go back. */
function ahead(text, sign) {
  let found = -2;
  return (from) => {
    if (found !== -1 && found < from) found = text.indexOf(sign, from);
    return found;
  };
}

/** For each run of backticks where the next one of its size begins. */
function closingTicks(text) {
  const closing = new Map();
  const next = new Map();
  for (const run of [...text.matchAll(/`+/g)].reverse()) {
    const size = run[0].length;
    if (next.has(size)) closing.set(run.index, next.get(size));
    next.set(size, run.index);
  }
  return closing;
}

function runOf(text, at) {
  let end = at;
  while (text[end] === "`") end += 1;
  return end - at;
}
