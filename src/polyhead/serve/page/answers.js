// One task's answer as a card, by what it holds.

import { byId, element, percent, short, spoken } from "./dom.js";

const MOST = 8; // labels that are shown at once

/** A task's card while it is waited for. */
export function waitingCard(name, task) {
  const id = `answer-${name}`;
  const button = { type: "button", "data-task": name, "aria-haspopup": "dialog", title: "Open the task's card" };
  return element(
    "article",
    { class: "answer", id, "aria-labelledby": `${id}-name`, "data-state": "waiting" },
    element(
      "header",
      {},
      element("h3", { id: `${id}-name` }, element("button", button, name)),
      element("span", { class: "kind" }, spoken(task?.task.kind ?? "")),
    ),
    element("div", { class: "body" }, element("p", { class: "soft" }, "waiting")),
    element(
      "footer",
      {},
      element("span", { class: "version" }),
      element(
        "button",
        { type: "button", class: "link why-ask", "data-why": name, "aria-label": `Why ${name}?`, hidden: true },
        "Why?",
      ),
      element("span", { class: "time" }),
    ),
  );
}

/** Fills a card; `time` in milliseconds since the question. `asked` is the text of places, and the options. */
export function fillCard(name, answer, task, time, asked) {
  const card = byId(`answer-${name}`);
  card.dataset.state = "done";
  card.querySelector(".body").replaceChildren(...bodyOf(answer, task?.task, asked));
  card.querySelector(".why-ask").hidden = false;
  card.querySelector(".time").textContent = `${time.toFixed(time < 10 ? 1 : 0)} ms`;
}

/** Says in a card which share of the rows known of the task lies as far out as the text. */
export function tellFamiliar(name, share, isNone) {
  const said = `familiar: ${Math.max(1, Math.round(1000 * share))} of 1,000 known texts lie as far out`;
  const line = element("p", { class: "soft familiar" }, isNone ? `none of these labels; ${said}` : said);
  byId(`answer-${name}`)?.querySelector(".body").append(line);
}

/** Says in a card why there is no answer. */
export function failCard(name, what, todo) {
  const card = byId(`answer-${name}`);
  card.dataset.state = "failed";
  card
    .querySelector(".body")
    .replaceChildren(element("p", { class: "failed" }, what), element("p", { class: "soft" }, todo));
}

function bodyOf(answer, task, { text, options }) {
  if (Array.isArray(answer.ranked) && Array.isArray(answer.scores)) return optionsOf(answer, options);
  if (answer.scores && typeof answer.scores === "object") return labelsOf(answer, task);
  if (typeof answer.value === "number") return numberOf(answer.value, task);
  if (Array.isArray(answer.spans) || Array.isArray(answer.words)) return placesOf(answer, Array.from(text));
  if ("start" in answer && "text" in answer) return spanOf(answer);
  if (typeof answer.summary === "string") return [element("p", { class: "prose", dir: "auto" }, answer.summary)];
  return [element("pre", {}, JSON.stringify(answer, null, 1))];
}

function labelsOf(answer, task) {
  const chosen = answer.labels ?? [answer.label];
  const declared = (task?.labels ?? []).filter((label) => Object.hasOwn(answer.scores, label));
  let rows = (declared.length ? declared : Object.keys(answer.scores)).map((label) => [label, answer.scores[label]]);
  if (rows.length > MOST) rows = rows.toSorted((a, b) => b[1] - a[1]);
  const bars = rows.map(([label, share]) => bar(label, share, percent(share), chosen.includes(label)));
  const nodes = [
    element(
      "p",
      { class: "headline", dir: "auto" },
      chosen.length ? chosen.join(", ") : element("span", { class: "soft" }, "none of the labels"),
    ),
    element("ul", { class: "bars", "aria-label": "Probability of each label" }, bars.slice(0, MOST)),
  ];
  if (bars.length > MOST) {
    nodes.push(
      element(
        "details",
        {},
        element("summary", {}, `${bars.length - MOST} more`),
        element("ul", { class: "bars", "aria-label": "Further labels" }, bars.slice(MOST)),
      ),
    );
  }
  return nodes;
}

function bar(label, share, value, isChosen) {
  const fill = element("span", { class: "fill" });
  fill.style.setProperty("--share", Math.min(1, Math.max(0, share))); // which the policy allows
  return element(
    "li",
    { class: isChosen ? "chosen" : null },
    element(
      "span",
      { class: "name", dir: "auto", title: label },
      label,
      isChosen ? element("span", { class: "unseen" }, " (answered)") : null,
    ),
    element("span", { class: "track", "aria-hidden": "true" }, fill),
    element("span", { class: "value" }, value),
  );
}

function numberOf(value, task) {
  const nodes = [element("p", { class: "headline number" }, short(value))];
  if (task?.range) {
    const [low, high] = task.range;
    const fill = element("span", { class: "fill" });
    fill.style.setProperty("--share", Math.min(1, Math.max(0, (value - low) / (high - low))));
    nodes.push(
      element(
        "div",
        { class: "scale" },
        element("span", { class: "track", "aria-hidden": "true" }, fill),
        element("span", {}, element("span", { class: "unseen" }, "of a scale from "), short(low)),
        element("span", {}, element("span", { class: "unseen" }, "to "), short(high)),
      ),
    );
  }
  return nodes;
}

function placesOf(answer, points) {
  const places = (answer.spans ?? answer.words).filter((place) => place.label !== "O");
  if (!places.length)
    return [element("p", { class: "headline" }, element("span", { class: "soft" }, "nothing in this text"))];
  return [
    element(
      "ul",
      { class: "places" },
      places.map((place) =>
        element(
          "li",
          {},
          element("span", { class: "name" }, place.label),
          element("span", { class: "quote", dir: "auto" }, place.text ?? points.slice(place.start, place.end).join("")),
          element("span", { class: "value" }, typeof place.score === "number" ? percent(place.score) : ""),
        ),
      ),
    ),
  ];
}

function spanOf(answer) {
  const said =
    answer.text === null
      ? element("span", { class: "soft" }, "no answer in this context")
      : element("span", {}, `“${answer.text}”`);
  return [
    element("p", { class: "headline", dir: "auto" }, said),
    element("p", { class: "soft" }, percent(answer.score)),
  ];
}

function optionsOf(answer, names) {
  return [
    element("p", { class: "headline", dir: "auto" }, answer.option),
    element(
      "ol",
      { class: "bars", "aria-label": "Options, best first" },
      answer.ranked.map((index, place) =>
        bar(names[index] ?? `option ${index + 1}`, answer.scores[index], percent(answer.scores[index]), place === 0),
      ),
    ),
  ];
}
