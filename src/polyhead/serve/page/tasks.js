// The server's tasks: what is known of each, and the list, in which arrow keys go up and down.

import { byId, counted, element, short, spoken } from "./dom.js";
import { got } from "./server.js";

/** What the server says of each task, by name, in its order. */
export let tasks = new Map();

/** Lists the tasks, at a task's own port that one; `open` gets the name of a chosen one. */
export async function loadTasks(open) {
  const answer = await got("v1/tasks");
  const shown = answer.tasks.filter(({ name }) => name === (answer.task ?? name));
  tasks = new Map(shown.map((task) => [task.name, task]));
  byId("server").textContent = `${answer.task ?? counted(tasks.size, "task")} over one encoder`;
  byId("server").title = `encoder ${answer.trunk}`;
  byId("tasks-count").textContent = String(tasks.size);
  byId("tasks").replaceChildren(...shown.map((task, i) => entryOf(task, open, i === 0)));
}

/** The names of the tasks that read such inputs. */
export const readersOf = (form) =>
  [...tasks.values()].filter((task) => task.inputs.includes(form)).map(({ name }) => name);

/** Begins: keys in the list. */
export function watchTasks() {
  const list = byId("tasks");
  list.addEventListener("keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    buttons[(next + buttons.length) % buttons.length].focus();
  });
  list.addEventListener("focusin", (event) => {
    // one is in the tab order: the one that had the focus last
    for (const button of list.querySelectorAll("button")) button.tabIndex = button.contains(event.target) ? 0 : -1;
  });
}

function entryOf(task, open, isFirst) {
  const [metric, score] = task.headline ?? [];
  const button = element(
    "button",
    { type: "button", tabindex: isFirst ? "0" : "-1", "aria-haspopup": "dialog" },
    element("span", { class: "name" }, task.name),
    element("span", { class: "score" }, typeof score === "number" ? `${spoken(metric)} ${short(score)}` : ""),
    element("span", { class: "kind" }, spoken(task.task.kind)),
    element("span", { class: "version" }, task.version),
  );
  button.addEventListener("click", () => open(task.name));
  return element("li", {}, button);
}
