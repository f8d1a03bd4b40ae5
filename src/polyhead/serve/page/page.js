// The page: what is typed goes to all tasks, and each answer is shown as it comes.

import { complaintOf, curlOf, FORMS, inputOf, listed, markedText } from "./asking.js";
import { showCard } from "./card.js";
import { byId, counted, element } from "./dom.js";
import { watchLoad } from "./load.js";
import { Results, watchResults } from "./results.js";
import { hasKey, lines, ServerError, told } from "./server.js";
import { showKey, watchSettings } from "./settings.js";
import { loadTasks, readersOf, tasks, watchTasks } from "./tasks.js";
import { showWhy } from "./why.js";

const FIELDS = ["text", "second", "options"];
let form = "text";
let only = null; // the one task that is asked; null: all
let asking = null; // what stops the request under way
let asked = null; // the input that is answered

// What is asked

const texts = () => FIELDS.map((id) => byId(id).value).map((text) => text.toWellFormed?.() ?? text);

/** Offers the forms that some task reads. */
function showForms() {
  const names = Object.keys(FORMS).filter((name) => readersOf(name).length);
  byId("forms").hidden = names.length < 2;
  byId("forms")
    .querySelectorAll("label")
    .forEach((label) => label.remove());
  byId("forms").append(
    ...names.map((name) => {
      const radio = element("input", { type: "radio", name: "form", value: name });
      radio.addEventListener("change", () => {
        showForm(name);
        clear();
      });
      return element("label", {}, radio, element("span", {}, FORMS[name].name));
    }),
  );
  showForm(names.length && !names.includes(form) ? names[0] : form);
}

function showForm(name) {
  form = name;
  const { first, second, hasOptions, examples, lead } = FORMS[name];
  const readers = readersOf(name).length;
  for (const radio of byId("forms").querySelectorAll("input")) radio.checked = radio.value === name;
  byId("lead").textContent = readers
    ? `${counted(readers, "task")} ${readers === 1 ? "answers" : "answer"} ${lead}. Type one, or take one of these.`
    : "";
  byId("ask").textContent = only === null && tasks.size !== 1 ? "Ask all tasks" : "Ask one task";
  byId("text-label").textContent = first;
  byId("second-field").hidden = second === null;
  byId("second-label").textContent = second ?? "";
  byId("options-field").hidden = !hasOptions;
  complain(null);
  byId("examples").replaceChildren(...examples.map(exampleOf));
}

function exampleOf(example) {
  const shown = example.filter(Boolean).map((text) => element("span", {}, text.replaceAll("\n", " · ")));
  const button = element("button", { type: "button" }, shown);
  button.addEventListener("click", () => {
    FIELDS.forEach((id, i) => {
      byId(id).value = example[i] ?? "";
    });
    ask();
  });
  return element("li", {}, button);
}

/** As before the first question. */
function clear() {
  asking?.abort();
  showError(null);
  byId("results").hidden = true;
  byId("empty").hidden = false;
}

function complain(complaint) {
  byId("complaint").textContent = complaint?.message ?? "";
  for (const id of FIELDS) byId(id).toggleAttribute("aria-invalid", complaint?.field === id);
  if (complaint) byId(complaint.field).focus();
}

/** Asks one task from now on; null: all. */
function askOnly(name) {
  only = name;
  byId("only").hidden = name === null;
  byId("only-text").textContent = name === null ? "" : `Only “${name}” is asked.`;
  const reads = tasks.get(name)?.inputs ?? [];
  showForm(reads.length && !reads.includes(form) ? reads[0] : form);
  byId("text").focus();
}

// Asking

async function ask() {
  const given = texts();
  const complaint = complaintOf(form, given);
  complain(complaint);
  if (complaint) return;
  asking?.abort();
  const own = (asking = new AbortController());
  asked = inputOf(form, given);
  const body = { inputs: [asked], ...(only === null ? {} : { tasks: [only] }) };
  const address = new URL("v1/predict", document.baseURI).href;
  byId("curl").textContent = curlOf(address, { ...body, inputs: body.inputs[0] }, hasKey());
  byId("ask").setAttribute("data-busy", "");
  showError(null);
  const names = only === null ? readersOf(form) : [only];
  const results = new Results({ names, text: markedText(form, given), options: listed(given[2]) });
  try {
    await follow(body, own.signal, results);
  } catch (error) {
    if (own.signal.aborted) return;
    results.broken();
    showError(error);
    lookAtServer();
  } finally {
    if (asking === own) {
      asking = null;
      byId("ask").removeAttribute("data-busy");
      showKey();
    }
  }
}

/** Shows each line as it comes. */
async function follow(body, signal, results) {
  let end = null;
  for await (const line of lines("v1/predict/stream", { ...body, options: { familiar: true } }, signal)) {
    if (signal.aborted) return;
    if (line.error) throw told(line.error);
    if (line.task === undefined) end = line;
    else results.answer(line.task, line.answers["0"]);
  }
  if (end === null) throw new ServerError("The answer broke off", { todo: "Ask again." });
  results.end(end);
  const isOther = ([name, { version }]) => tasks.get(name)?.version !== version;
  if (Object.entries(end.versions).some(isOther)) start();
}

const inWords = (value) => (typeof value === "object" ? JSON.stringify(value) : value);

function showError(error) {
  const box = byId("error");
  box.hidden = error === null;
  if (error === null) {
    box.replaceChildren();
    return;
  }
  const again = element("button", { type: "button", class: "quiet" }, "Ask again");
  again.addEventListener("click", () => (tasks.size ? ask() : start()));
  const facts = [
    ["Given", error.got],
    ["Allowed", error.allowed],
  ].filter(([, value]) => value != null && value.length !== 0);
  box.replaceChildren(
    element("h2", {}, error instanceof ServerError ? error.message : `The page failed: ${error.message}`),
    ...facts.map(([name, value]) => element("p", {}, `${name}: ${[value].flat().map(inWords).join(", ")}`)),
    element("p", {}, error.todo ?? "Reload the page, and ask again."),
    again,
  );
}

// What is pressed

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
byId("form").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing) return;
  event.preventDefault();
  ask();
});
for (const id of FIELDS) {
  byId(id).addEventListener("input", () => {
    if (byId("complaint").textContent) complain(null);
  });
}
byId("all").addEventListener("click", () => askOnly(null));
byId("answers").addEventListener("click", (event) => {
  const why = event.target.closest("button[data-why]")?.dataset.why;
  if (why !== undefined) showWhy(why, asked);
  const name = event.target.closest("button[data-task]")?.dataset.task;
  if (name !== undefined) showCard(name, askOnly);
});
byId("card-close").addEventListener("click", () => byId("card").close());
byId("card").addEventListener("click", (event) => {
  if (event.target === byId("card")) byId("card").close(); // beside it
});
byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(byId("curl").textContent);
    byId("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId("curl"));
    byId("copy").textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => {
    byId("copy").textContent = "Copy";
  }, 2000);
});

// The server

/** Reads the tasks. */
async function start() {
  try {
    await loadTasks((name) => showCard(name, askOnly));
    showForms();
    showKey();
  } catch (error) {
    showError(error);
  }
}

function showHealth(isThere) {
  const [before, state] = [byId("health").dataset.state, isThere ? "up" : "down"];
  if (before === state) return;
  byId("health").dataset.state = state;
  byId("health-text").textContent = isThere ? "connected" : "no answer";
  if (before === "down") start(); // it may be another server by now
}

watchSettings();
watchTasks();
watchResults();
showForm("text");
start();
const lookAtServer = watchLoad(showHealth);
