// The server's load of the last minute, as three small charts that are drawn anew every two seconds.

import { byId, drawing, element, short } from "./dom.js";
import { got, ServerError } from "./server.js";

const [WIDE, HIGH] = [240, 36]; // of a drawing
const EVERY = 2000; // milliseconds
const NEWEST = 5; // seconds whose mean is told
const CHARTS = [
  { id: "requests", name: "requests a second", least: 5, now: (load) => short(mean(load.requests.slice(-NEWEST))) },
  { id: "waiting", name: "inputs waiting", least: 5, now: (load) => short(load.now) },
  { id: "milliseconds", name: "milliseconds", least: 10, now: (load) => lastOf(load.milliseconds) },
];

/**
 * Begins; `told` gets true or false as the server answers or does not. It rests while nobody sees the page.
 * Returns what looks at once.
 */
export function watchLoad(told) {
  byId("load").replaceChildren(
    ...CHARTS.map(({ id, name }) =>
      element(
        "figure",
        {},
        element(
          "figcaption",
          {},
          element("span", { class: "name" }, name),
          element("output", { id: `load-${id}` }, "–"),
        ),
        drawing(
          "svg",
          {
            viewBox: `0 0 ${WIDE} ${HIGH}`,
            preserveAspectRatio: "none",
            role: "img",
            id: `chart-${id}`,
            "aria-label": `${name}: not known yet`,
          },
          drawing("path"),
        ),
      ),
    ),
  );
  let timer = 0;
  const look = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      draw(await got("v1/load", { quiet: true }));
      told(true);
    } catch (error) {
      told(error instanceof ServerError && error.status !== 0); // refused for want of a key: it is there
    }
    timer = setTimeout(look, EVERY);
  };
  document.addEventListener("visibilitychange", look);
  look();
  return look;
}

function draw(load) {
  for (const { id, name, least, now } of CHARTS) {
    const values = load[id];
    const said = now(load);
    byId(`load-${id}`).textContent = said;
    const chart = byId(`chart-${id}`);
    const most = Math.max(0, ...values.map((value) => value ?? 0));
    chart.setAttribute("aria-label", `${name}: now ${said}, at most ${short(most)} in the last minute`);
    chart.querySelector("path").setAttribute("d", barsOf(values, Math.max(least, most)));
  }
}

/** A bar for each second that has a value above 0. */
function barsOf(values, most) {
  const step = WIDE / Math.max(1, values.length);
  return values
    .map((value, i) => {
      if (!value) return "";
      const height = Math.max(1.5, (value / most) * (HIGH - 2));
      return `M${(i * step).toFixed(2)} ${HIGH}v${-height.toFixed(2)}h${(step * 0.75).toFixed(2)}V${HIGH}Z`;
    })
    .join("");
}

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0);
const lastOf = (values) => {
  const known = values.filter((value) => value !== null);
  return known.length ? short(known.at(-1)) : "–";
};
