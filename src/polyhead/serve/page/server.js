// Asking the server: JSON, answers line by line, the key, and errors that say what to do.

/** What a server refused, or that there is none: `got`, `allowed` and `todo` may be missing. */
export class ServerError extends Error {
  constructor(message, { status = 0, got, allowed, todo } = {}) {
    super(message);
    Object.assign(this, { status, got, allowed, todo });
  }
}

let key = ""; // in this page's memory alone
let askForKey = async () => null; // how a person is asked; null: not given
let typing = null; // the key that a person is being asked for, once for all who wait for it

export const hasKey = () => key !== "";
export const forgetKey = () => {
  key = "";
};
export const onKeyNeeded = (ask) => {
  askForKey = ask;
};

/** A JSON value of this address, which is below the page's own. */
export async function got(path, { quiet = false } = {}) {
  const response = await asked(path, {}, quiet);
  return response.json();
}

/** The JSON value that is answered to a request. */
export async function posted(path, body) {
  const headers = { "Content-Type": "application/json" };
  const response = await asked(path, { method: "POST", body: JSON.stringify(body), headers });
  return response.json();
}

/** Every line of what is answered to a request, as it comes. Throws ServerError, also where the server goes away. */
export async function* lines(path, body, signal) {
  const response = await asked(path, {
    method: "POST",
    body: JSON.stringify(body),
    signal,
    headers: { "Content-Type": "application/json", Accept: "application/x-ndjson" },
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw signal.aborted ? error : gone("The server went away before it was done");
    }
    const whole = (rest + (part.value ?? "")).split("\n");
    rest = whole.pop();
    for (const line of whole) if (line) yield JSON.parse(line);
    if (part.done) return;
  }
}

async function asked(path, options, quiet = false) {
  for (;;) {
    const given = key;
    const headers = { ...options.headers, ...(given ? { Authorization: `Bearer ${given}` } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store", referrerPolicy: "no-referrer" });
    } catch (error) {
      throw options.signal?.aborted ? error : gone("The server does not answer");
    }
    if (response.ok) return response;
    const error = await refusal(response);
    if (response.status !== 401 || quiet) throw error;
    if (key === given) {
      // else another request was given one meanwhile
      typing ??= askForKey(given ? "The server does not know this key." : "").finally(() => {
        typing = null;
      });
      const typed = await typing;
      if (typed === null) throw error;
      key = typed;
    }
  }
}

const gone = (message) =>
  new ServerError(message, {
    todo: "See whether it still runs, and start it with “polyhead serve” where it does not. Then ask again.",
  });

async function refusal(response) {
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    /* no JSON: something between here and the server answered */
  }
  const wait = response.headers.get("Retry-After");
  return new ServerError(whatOf(told) ?? `The server answered ${response.status}`, {
    status: response.status,
    got: told.got,
    allowed: told.allowed,
    todo: response.status === 429 && wait ? `Ask again in ${wait} s: many others ask too.` : sentence(told.do),
  });
}

/** An error that is told inside an answer that had begun. */
export const told = (error) =>
  new ServerError(whatOf(error) ?? "The server failed", {
    got: error.got,
    allowed: error.allowed,
    todo: sentence(error.do),
  });

/** What failed: the beginning of a message, which goes on with the facts that have fields of their own. */
function whatOf(error) {
  const facts = { Got: error.got, Allowed: error.allowed, Do: error.do };
  const named = Object.keys(facts).filter((name) => facts[name] != null);
  const ends = named.map((name) => error.message.indexOf(`. ${name}: `)).filter((at) => at > 0);
  return sentence(error.message?.slice(0, ends.length ? Math.min(...ends) : undefined));
}

const sentence = (words) => (words ? words[0].toUpperCase() + words.slice(1) : undefined);
