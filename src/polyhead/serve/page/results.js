// The answers to one question as they come: a card a task, marks in the text, and the receipt.

import { failCard, fillCard, tellFamiliar, waitingCard } from "./answers.js";
import { byId, counted, element, short } from "./dom.js";
import { marked, marksOf } from "./marks.js";
import { tasks } from "./tasks.js";

const [WIDE, GAP, ROW] = [252, 16, 4]; // pixels, as in the style: cards, between them, and rows of their grid

/** Begins: cards are arranged anew whenever one has another size. */
export function watchResults() {
  sizes.observe(byId("answers"));
}

/** One question. `names` are the tasks that probably answer it; in `text` they mark places. */
export class Results {
  constructor({ names, text, options }) {
    [this.text, this.options, this.began] = [text, options, performance.now()];
    [this.marks, this.answered] = [[], 0];
    byId("empty").hidden = byId("reading").hidden = byId("unfit").hidden = true;
    byId("results").hidden = false;
    byId("answers").replaceChildren();
    byId("answers").setAttribute("aria-busy", "true");
    names.forEach(place);
    say(`${counted(names.length, "task")} asked`);
  }

  /** Shows a task's answer. */
  answer(name, answer) {
    place(name);
    fillCard(name, answer, tasks.get(name), this.time, this);
    this.answered += 1;
    const more = marksOf(name, answer, tasks.get(name)?.task);
    if (!more.length) return;
    this.marks.push(...more);
    byId("reading").replaceChildren(...marked(this.text, this.marks));
    byId("reading").hidden = false;
  }

  /** Shows what is known when all is done: what failed, versions, and the receipt. */
  end({ results: [{ failed = {}, late = [], skipped = {}, familiar = {}, none_of_these = {}, receipt }], versions }) {
    for (const [name, share] of Object.entries(familiar)) tellFamiliar(name, share, none_of_these[name]);
    for (const [name, why] of Object.entries(failed)) {
      fail(
        name,
        `This task failed: ${why}`,
        "The others are not touched. Whoever runs the server finds more in its log.",
      );
    }
    for (const name of late) fail(name, "Not done in time.", "Ask again, or ask for fewer tasks.");
    for (const [name, { version, digest }] of Object.entries(versions)) {
      const place = byId(`answer-${name}`)?.querySelector(".version");
      if (place) Object.assign(place, { textContent: version, title: digest });
    }
    const unfit = Object.entries(skipped);
    byId("unfit").hidden = !unfit.length;
    byId("unfit").replaceChildren(
      element("h3", {}, "Not for this input"),
      element(
        "ul",
        {},
        unfit.map(([name, why]) => element("li", {}, element("strong", {}, name), ` ${why}`)),
      ),
    );
    say(inWords(receipt, this.answered, this.time), receipt.cut > 0);
    settle();
  }

  /** What came stays, where no more comes. */
  broken() {
    settle();
    say(this.answered ? `${counted(this.answered, "answer")} came before it broke off` : "");
    byId("results").hidden = !this.answered;
  }

  /** Milliseconds since the question. */
  get time() {
    return performance.now() - this.began;
  }
}

/** The receipt in words. */
function inWords({ passes, layers, tokens, cut, windows, repaired }, answered, time) {
  return [
    `${counted(answered, "answer")} in ${short(time)} ms`,
    passes === 1 ? "one pass" : passes || !answered ? counted(passes, "pass") : "no pass: it was answered before",
    counted(layers, "layer"),
    counted(tokens, "token"),
    windows > 1 ? `${windows} windows` : "",
    repaired ? `${counted(repaired, "broken character")} replaced` : "",
    cut ? `${counted(cut, "token")} at the end not read` : "nothing cut",
  ]
    .filter(Boolean)
    .join(" · ");
}

function say(words, isCut = false) {
  byId("receipt").textContent = words;
  byId("receipt").classList.toggle("cut", isCut);
}

/** A place for a task's answer, where it has none yet. */
function place(name) {
  if (byId(`answer-${name}`)) return;
  const card = waitingCard(name, tasks.get(name));
  byId("answers").append(card);
  sizes.observe(card);
}

function fail(name, what, todo) {
  place(name);
  failCard(name, what, todo);
}

/** No more comes: who was not asked, or does not fit, has no card. */
function settle() {
  for (const card of byId("answers").querySelectorAll("[data-state=waiting]")) card.remove();
  byId("answers").setAttribute("aria-busy", "false");
  arrange();
}

const sizes = new ResizeObserver(() => arrange());

/** Cards of several heights lie close in their columns. Each has the next column; when all are done, the shortest. */
function arrange() {
  const columns = Math.max(1, Math.floor((byId("answers").clientWidth + GAP) / (WIDE + GAP)));
  const isDone = byId("answers").getAttribute("aria-busy") === "false";
  const heights = Array(columns).fill(0);
  [...byId("answers").children].forEach((card, i) => {
    const column = isDone ? heights.indexOf(Math.min(...heights)) : i % columns;
    const rows = Math.ceil((card.offsetHeight + GAP) / ROW);
    heights[column] += rows;
    card.style.gridColumn = `${column + 1}`;
    card.style.gridRowEnd = `span ${rows}`;
  });
}
