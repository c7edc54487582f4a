// A search for settings: its trials as lines over the settings, and as a table.

import { isFinite, number, Rows, Wide } from "./common.js";

const { createElement: h, Fragment } = globalThis.React;
const { Box, Heading, Text } = globalThis.ChakraUI;

const [WIDTH, HEIGHT, TOP, BOTTOM, SIDE] = [640, 200, 24, 12, 40];
const MOST_ROWS = 50;
const [BEST, OTHER, PRUNED] = ["#dd6b20", "#3182ce", "#a0aec0"];

const shown = (value) => (typeof value === "number" ? number(value, 4) : String(value));

/** Where a value lies on an axis, 0 to 1: numbers by their size, or its logarithm; others by their order. */
function scaleOf(values) {
  const finite = values.filter(isFinite);
  if (finite.length < values.length) {
    const known = [...new Set(values.map(String))].sort();
    return { at: (value) => (known.indexOf(String(value)) + 0.5) / known.length, ends: [known[0], known.at(-1)] };
  }
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const map = low > 0 && high / low > 30 ? Math.log : (value) => value;
  return { at: (value) => (low === high ? 0.5 : (map(value) - map(low)) / (map(high) - map(low))), ends: [low, high].map(shown) };
}

/** One axis for each setting and one for the value; a line for each trial. */
function Lines({ trials, names, best }) {
  const settings = names.map((name) => ({ name, of: ({ parameters }) => parameters[name] }));
  const axes = [...settings, { name: "value", of: ({ value }) => value }].map(({ name, of }) => ({
    name, of, scale: scaleOf(trials.map(of)),
  }));
  const x = (at) => SIDE + (at * (WIDTH - 2 * SIDE)) / (axes.length - 1);
  const y = (part) => HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM);
  const words = { fill: "currentColor", style: { fontSize: "10px" }, textAnchor: "middle" };
  const sorted = [...trials].sort((one, other) => (one.number === best) - (other.number === best));
  return h(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%", role: "img", style: { minWidth: "32rem" }, // as wide as can be read
      "aria-label": `${trials.length} trials over ${names.join(", ")}`,
    },
    sorted.map((trial) =>
      h(
        "polyline",
        {
          key: trial.number, fill: "none", points: axes.map(({ of, scale }, at) => `${x(at)},${y(scale.at(of(trial)))}`).join(" "),
          stroke: trial.number === best ? BEST : trial.state === "pruned" ? PRUNED : OTHER,
          strokeWidth: trial.number === best ? 2.5 : 1, strokeOpacity: trial.number === best ? 1 : 0.6,
        },
        h("title", null, `trial ${trial.number}, ${trial.state}: ${shown(trial.value)}`),
      ),
    ),
    axes.map(({ name, scale }, at) =>
      h(
        "g",
        { key: at },
        h("line", { x1: x(at), x2: x(at), y1: y(0), y2: y(1), stroke: "currentColor", strokeOpacity: 0.4 }),
        h("text", { x: x(at), y: 9, ...words }, name),
        h("text", { x: x(at), y: TOP - 4, ...words }, scale.ends[1]),
        h("text", { x: x(at), y: HEIGHT - 1, ...words }, scale.ends[0]),
      ),
    ),
  );
}

/** @param study what the server says of the search, or null; @param trials those that have ended */
export function Search({ study, trials }) {
  const best = study?.best_trial ?? null;
  const names = [...new Set(trials.flatMap(({ parameters }) => Object.keys(parameters)))];
  const measured = trials.filter(({ value }) => isFinite(value));
  // Which way is better, the best one shows; until it is known, the newest come first.
  const isLess = measured.some(({ value }) => value > study?.best_value);
  const ranked = [...trials].sort((one, other) =>
    best === null ? other.number - one.number : (other.number === best) - (one.number === best) || (isLess ? 1 : -1) * (one.value - other.value),
  );
  const counts = Object.entries(study?.trials ?? {}).filter(([, count]) => count > 0).map(([state, count]) => `${count} ${state}`);
  return h(
    Box,
    { marginTop: 3 },
    h(
      Heading,
      { as: "h2", size: "md" },
      "Search",
      h(Text, { as: "span", fontSize: "sm", color: "fg.muted", fontWeight: "normal" }, ` trials: ${counts.join(", ") || "none yet"}`),
    ),
    names.length > 0 && measured.length > 1 && h(Wide, { label: "Lines of the trials" }, h(Lines, { trials: measured, names, best })),
    trials.length > 0 &&
      h(
        Fragment,
        null,
        h(Rows, {
          head: ["trial", "value", ...names],
          rows: ranked.slice(0, MOST_ROWS).map((trial) => [
            `${trial.number}${trial.number === best ? ", the best" : ""}${trial.state === "complete" ? "" : `, ${trial.state}`}`,
            shown(trial.value),
            ...names.map((name) => (name in trial.parameters ? shown(trial.parameters[name]) : "")),
          ]),
        }),
        trials.length > MOST_ROWS && h(Text, { fontSize: "sm" }, `${MOST_ROWS} of ${trials.length}.`),
      ),
  );
}
