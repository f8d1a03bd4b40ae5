// A task's card in a dialog: what it answers, how well, on which path, and the text that came with it.

import { byId, counted, element, short, spoken } from "./dom.js";
import { rendered } from "./markdown.js";
import { plainLabel } from "./marks.js";
import { got } from "./server.js";

let shown = 0; // cards asked for so far: a later one wins

/** Opens the card of a task; `onlyThis` is called where it shall be asked alone. */
export async function showCard(name, onlyThis) {
  const [dialog, body, number] = [byId("card"), byId("card-body"), ++shown];
  byId("card-title").textContent = name;
  body.replaceChildren(element("p", { class: "soft" }, "loading"));
  if (!dialog.open) dialog.showModal();
  byId("card-title").focus();
  try {
    const facts = await got(`v1/tasks/${encodeURIComponent(name)}`);
    if (number === shown) body.replaceChildren(...nodesOf(facts, onlyThis));
  } catch (error) {
    if (number === shown)
      body.replaceChildren(
        element("p", { class: "failed", role: "alert" }, error.message),
        element("p", {}, error.todo ?? ""),
      );
  }
}

function nodesOf(facts, onlyThis) {
  const ask = element("button", { type: "button", class: "quiet" }, "Ask only this task");
  ask.addEventListener("click", () => {
    byId("card").close();
    onlyThis(facts.name);
  });
  return [
    element(
      "dl",
      { class: "facts" },
      fact("Kind", spoken(facts.task.kind)),
      fact("Reads", (facts.inputs ?? []).map(inWords).join(", ")),
      fact("Version", facts.version || "not in the bundle"),
      fact("Digest", element("code", { title: facts.digest }, facts.digest.slice(0, 12) || "none")),
    ),
    ask,
    ...section("Labels", labelsOf(facts.task)),
    ...section("Score on test rows", scoresOf(facts)),
    ...section("Probabilities", surenessOf(facts.calibration ?? {})),
    ...section("Path", facts.path ? [pathOf(facts.path)] : []),
    ...section("Card", facts.card ? [element("div", { class: "prose" }, rendered(facts.card, facts.name))] : []),
  ];
}

const INPUTS = {
  text: "a text",
  pair: "a pair of texts",
  passage: "a question about a context",
  question: "a question with options",
};
const inWords = (type) => INPUTS[type] ?? type;
const fact = (name, value) => element("div", {}, element("dt", {}, name), element("dd", {}, value || "not said"));
const section = (title, nodes) => (nodes.length ? [element("h3", {}, title), ...nodes] : []);

/** The labels; of tags those that a place can have. */
function labelsOf({ kind, labels }) {
  const names =
    kind === "tagging" && labels.includes("O")
      ? [...new Set(labels.filter((label) => label !== "O").map(plainLabel))]
      : labels;
  return names.length
    ? [
        element(
          "ul",
          { class: "labels" },
          names.map((label) => element("li", { dir: "auto" }, label)),
        ),
      ]
    : [];
}

/** The headline metric of the task and of what it is compared with. */
function scoresOf({ headline, scores, task }) {
  if (!headline || headline[1] === null) return [];
  const [metric, value] = headline;
  const rows = [[task.name, value, true]];
  for (const [name, splits] of Object.entries(scores?.baselines ?? {})) {
    const other = splits.test?.[metric];
    if (typeof other === "number") rows.push([name, other, false]);
  }
  const most = Math.max(1, ...rows.map((row) => row[1]));
  return [
    element("p", { class: "soft" }, spoken(metric)),
    element(
      "ul",
      { class: "bars" },
      rows.map(([name, number, isOwn]) => {
        const fill = element("span", { class: "fill" });
        fill.style.setProperty("--share", Math.max(0, number / most));
        return element(
          "li",
          { class: isOwn ? "chosen" : null },
          element("span", { class: "name" }, name),
          element("span", { class: "track", "aria-hidden": "true" }, fill),
          element("span", { class: "value" }, short(number)),
        );
      }),
    ),
  ];
}

/** How far off probabilities are, in words. */
function surenessOf({ error, rows, calibrated_error: after }) {
  const off = (what, share) => element("p", {}, `${what}: off by ${(100 * share).toFixed(1)} points on average`);
  const lines = rows ? [off(`On ${counted(rows, "row")} held out`, error)] : [];
  return after === undefined ? lines : [...lines, off("Calibrated", after)];
}

function pathOf(path) {
  return element(
    "ol",
    { class: "path" },
    path.nodes.map((node) => {
      const [name, ...more] = nodeInWords(node);
      return element("li", {}, element("strong", {}, name), element("span", {}, more.filter(Boolean).join(", ")));
    }),
  );
}

function nodeInWords(node) {
  switch (node.type) {
    case "embed":
      return ["Embed", node.prompts?.length ? `${counted(node.prompts.length, "prompt")}` : "the text"];
    case "layers":
      return [
        "Layers",
        `${node.start} to ${node.stop}`,
        node.weights === "trunk" ? "the encoder's" : "its own",
        node.delta ? "with a delta" : "",
      ];
    case "pool":
      return ["Pool", `${node.layers}${node.of > 1 ? ` of ${node.of}` : ""}`, node.positions, node.codec?.name];
    case "head":
      return ["Head", spoken(node.kind), counted(node.width, "output")];
    default:
      return [String(node.type)];
  }
}
