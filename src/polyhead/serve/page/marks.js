// A text in which tasks marked characters. They count code points, JavaScript counts UTF-16.

import { element, percent } from "./dom.js";

const TONES = 6;

/** What a task marked: `{start, end, label, score, task, tone}` for each place; none for answers of other kinds. */
export function marksOf(name, answer, task) {
  if (Array.isArray(answer.spans) || Array.isArray(answer.words)) {
    const names = [...new Set((task?.labels ?? []).map(plainLabel))].filter((label) => label !== "O");
    return (answer.spans ?? answer.words)
      .filter((place) => place.label !== "O" && place.end > place.start)
      .map((place) => ({
        ...place,
        task: name,
        tone: 1 + (Math.max(0, names.indexOf(plainLabel(place.label))) % TONES),
      }));
  }
  if (typeof answer.start === "number" && answer.end > answer.start) {
    return [{ start: answer.start, end: answer.end, label: "answer", score: answer.score, task: name, tone: 1 }];
  }
  return [];
}

/** A label without the B- or I- of tags. */
export const plainLabel = (label) => label.replace(/^[BI]-/, "");

/** The text as nodes, cut wherever a mark begins or ends, each mark's label behind it. Marks may overlap. */
export function marked(text, marks) {
  const points = Array.from(text);
  const inside = (at) => Math.min(Math.max(0, at), points.length);
  const cuts = [...new Set([0, points.length, ...marks.flatMap((mark) => [inside(mark.start), inside(mark.end)])])];
  cuts.sort((a, b) => a - b);
  const waiting = [...marks].sort((a, b) => a.start - b.start);
  let open = [];
  const nodes = [];
  for (let i = 0; i + 1 < cuts.length; i++) {
    const [from, to] = [cuts[i], cuts[i + 1]];
    open = open.filter((mark) => inside(mark.end) > from);
    while (waiting.length && inside(waiting[0].start) <= from) {
      const mark = waiting.shift();
      if (inside(mark.end) > from) open.push(mark);
    }
    const piece = points.slice(from, to).join("");
    if (!open.length) nodes.push(piece);
    else {
      const [first, ...others] = open;
      const ended = open.filter((mark) => inside(mark.end) === to);
      nodes.push(
        element(
          "mark",
          { class: `tone-${first.tone}${others.length ? " several" : ""}`, title: open.map(title).join("; ") },
          piece,
          ended.map((mark) => element("span", { class: "tag" }, mark.label)),
        ),
      );
    }
  }
  return nodes;
}

const title = (mark) =>
  `${mark.task}: ${mark.label}` + (typeof mark.score === "number" ? `, ${percent(mark.score)}` : "");
