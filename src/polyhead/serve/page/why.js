// Why a task answered as it did: the words that moved its answer, asked when somebody wants to know.

import { byId, element, short } from "./dom.js";
import { posted } from "./server.js";

const LEAST = 0.1; // share of what an answer is sure of that an effect must reach to be shaded fully

/** Asks, and shows in the task's card. */
export async function showWhy(name, input) {
  const card = byId(`answer-${name}`);
  const button = card.querySelector(".why-ask");
  const box = element("div", { class: "why" }, element("p", { class: "soft" }, "asking without each word"));
  card.querySelector(".why")?.remove();
  card.querySelector(".body").after(box);
  button.disabled = true;
  try {
    const body = { inputs: [input], tasks: [name], options: { explain: true, receipt: false } };
    const { results } = await posted("v1/predict", body);
    box.replaceChildren(...nodesOf(results[0].explained[name]));
  } catch (error) {
    box.replaceChildren(element("p", { class: "failed" }, error.message), element("p", { class: "soft" }, error.todo));
  } finally {
    button.disabled = false;
  }
}

function nodesOf(explanation) {
  if (!explanation?.said.length) return [element("p", { class: "soft" }, "There is nothing that words could move.")];
  return explanation.said.flatMap((said) => [
    element("p", { class: "soft", dir: "auto" }, `for ${said.says}: ${short(said.support)}`),
    ...explanation.texts.map((text, place) => element("p", { dir: "auto" }, shaded(text, place, said))),
  ]);
}

/** The words, each shaded by its effect; characters count code points. */
function shaded(text, place, { support, parts }) {
  const points = Array.from(text);
  const most = Math.max(LEAST * Math.abs(support), ...parts.map((part) => Math.abs(part.effect))) || 1;
  const nodes = [];
  let at = 0;
  for (const part of parts.filter((part) => part.place === place)) {
    const effect = `${part.effect < 0 ? "against" : "for"} it: ${short(part.effect)}`;
    const title = part.becomes === null ? effect : `${effect}; without it: ${part.becomes}`;
    const word = element("mark", { class: part.effect < 0 ? "against" : "for", title }, part.text);
    word.style.setProperty("--share", Math.abs(part.effect) / most); // by the object model, which the policy allows
    nodes.push(points.slice(at, part.start).join(""), word);
    at = part.end;
  }
  return [...nodes, points.slice(at).join("")];
}
