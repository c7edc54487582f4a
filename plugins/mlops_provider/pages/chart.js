// A metric over the steps of trainings, as SVG in the page's own colours.

import { isFinite, number } from "./common.js";

const { createElement: h } = globalThis.React;
const { Box, Flex, Text } = globalThis.ChakraUI;

const COLOURS = ["#3182ce", "#dd6b20", "#38a169", "#9f7aea", "#d53f8c", "#0bc5ea", "#a0715e", "#888888"];
const [WIDTH, HEIGHT] = [320, 170];
const [LEFT, RIGHT, TOP, BOTTOM] = [48, 8, 8, 20];
const MOST_BUCKETS = 300; // of a line: of longer ones the lowest and the highest value of each

const short = (value) => number(value, 4);

/** Of a long line the extremes, so that no spike is lost: `[[step, value]]` in the order of steps. */
function thinned(points) {
  if (points.length <= 2 * MOST_BUCKETS) return points;
  const size = Math.ceil(points.length / MOST_BUCKETS);
  const kept = [];
  for (let at = 0; at < points.length; at += size) {
    const bucket = points.slice(at, at + size);
    const finite = bucket.filter(([, value]) => isFinite(value));
    const shown = new Set([bucket.find(([, value]) => !isFinite(value))]);
    if (finite.length > 0) {
      shown.add(finite.reduce((one, other) => (other[1] < one[1] ? other : one)));
      shown.add(finite.reduce((one, other) => (other[1] > one[1] ? other : one)));
    }
    shown.delete(undefined);
    kept.push(...[...shown].sort(([one], [other]) => one - other));
  }
  return kept;
}

/** An SVG path, with a gap where a value was not finite. */
function path(points, x, y) {
  let isDown = false;
  return points
    .map(([step, value]) => {
      if (!isFinite(value)) {
        isDown = false;
        return "";
      }
      const drawn = `${isDown ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
      isDown = true;
      return drawn;
    })
    .join("");
}

/** Values that no line leads to or from. */
const alone = (points) =>
  points.filter(
    ([, value], at) => isFinite(value) && !isFinite(points[at - 1]?.[1]) && !isFinite(points[at + 1]?.[1]),
  );

/** The step that a line had come to at a moment; null where it had not begun. */
function stepAt(line, at) {
  let found = null;
  for (const [step, point] of line.points) if (point.at <= at && (found === null || step > found)) found = step;
  return found;
}

/**
 * @param lines `{run, name, points: Map(step => {value, at})}` of each training
 * @param marks events, drawn where the training stood then; of several trainings none, for nothing says whose they are
 */
export function Chart({ title, lines, marks }) {
  const drawn = lines.map((line) => ({
    ...line,
    sorted: [...line.points].map(([step, { value }]) => [step, value]).sort(([one], [other]) => one - other),
  }));
  const finite = drawn.flatMap((line) => line.sorted).filter(([, value]) => isFinite(value));
  const [steps, values] = [drawn.flatMap((line) => line.sorted.map(([step]) => step)), finite.map(([, value]) => value)];
  const extent = (all) => all.reduce(([low, high], each) => [Math.min(low, each), Math.max(high, each)], [Infinity, -Infinity]);
  const [first, last] = extent(steps);
  let [low, high] = values.length > 0 ? extent(values) : [0, 1];
  if (low === high) [low, high] = [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
  const x = (step) => LEFT + ((step - first) / (last - first || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const now = drawn.map((line) => line.sorted.findLast(([, value]) => isFinite(value))?.[1] ?? null);
  const said = drawn.map((line, at) => `${line.name} ${now[at] === null ? "is not finite" : short(now[at])}`).join(", ");
  const grid = { stroke: "currentColor", strokeOpacity: 0.2 };
  const words = { fill: "currentColor", style: { fontSize: "10px" } }; // Airflow's own style goes before attributes
  return h(
    Box,
    { borderWidth: "1px", borderRadius: "md", padding: 2, maxWidth: "28rem" },
    h(Text, { fontSize: "sm", fontWeight: "bold" }, title),
    h(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%", role: "img",
        "aria-label": `${title}, steps ${first} to ${last}: ${said}`,
      },
      [low, (low + high) / 2, high].map((value) => [
        h("line", { key: `line ${value}`, x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), ...grid }),
        h("text", { key: value, x: LEFT - 4, y: y(value) + 3, textAnchor: "end", ...words }, short(value)),
      ]),
      h("text", { x: LEFT, y: HEIGHT - 6, ...words }, first),
      h("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, textAnchor: "end", ...words }, `step ${last}`),
      (lines.length === 1 ? marks : []).map(({ at, kind, said: told }, index) => {
        const step = stepAt(lines[0], Date.parse(at));
        if (step === null) return null;
        const place = { x1: x(step), x2: x(step), y1: TOP, y2: HEIGHT - BOTTOM };
        return h(
          "line",
          { key: index, ...place, stroke: kind === "resumed" ? "#38a169" : "#e53e3e", strokeDasharray: "3 2" },
          h("title", null, `${kind.replaceAll("_", " ")}: ${told}`),
        );
      }),
      drawn.map((line, at) =>
        h("path", {
          key: line.run, d: path(thinned(line.sorted), x, y), fill: "none", stroke: COLOURS[at % COLOURS.length],
          strokeWidth: 1.5,
        }),
      ),
      drawn.map((line, at) =>
        alone(line.sorted).map(([step, value]) =>
          h("circle", { key: `${line.run} ${step}`, cx: x(step), cy: y(value), r: 2, fill: COLOURS[at % COLOURS.length] }),
        ),
      ),
    ),
    drawn.length <= COLOURS.length &&
      h(
        Flex,
        { gap: 3, flexWrap: "wrap", fontSize: "xs" },
        drawn.map((line, at) =>
          h(
            "span",
            { key: line.run },
            h("span", { "aria-hidden": true, style: { color: COLOURS[at % COLOURS.length] } }, "\u25A0 "),
            `${line.name}: ${now[at] === null ? "not finite" : short(now[at])}`,
          ),
        ),
      ),
  );
}
