// The model of a pipeline: what its nights came to beside the champion, and its versions.

import {
  address, ask, isFinite, Moment, NoPipeline, number, Problem, Rows, runPlace, Said, Standing, Tab, To, useLooks, useTitle, utc,
} from "./common.js";
import { Compare } from "./compare.js";
import { AskProduction, RollBack } from "./release.js";

const { createElement: h, Fragment } = globalThis.React;
const { Box, Heading, Text } = globalThis.ChakraUI;

const NIGHTS = 30;
const [WIDTH, HEIGHT] = [480, 180];
const [LEFT, RIGHT, TOP, BOTTOM] = [56, 8, 10, 24];
const FILLS = { promoted: "#38a169", stopped: "#dd6b20", failed: "#e53e3e", asked: "#d69e2e", running: "#3182ce" };

const nightsOf = (pipeline, signal) =>
  ask(`nights?pipeline=${encodeURIComponent(pipeline)}&limit=${NIGHTS}`, signal);

async function versionsOf(pipeline, signal) {
  const { models, unreachable } = await ask("models", signal);
  const own = models.filter((model) => model.pipeline === pipeline);
  const found = own.map(async ({ name, aliases }) => {
    const page = (query) => ask(`models/${encodeURIComponent(name)}/versions?${query}`, signal);
    const { versions } = await page(`limit=${NIGHTS}`);
    const champion = Number(aliases.champion); // it may be older than all of these
    if (versions.at(-1)?.version > champion) versions.push(...(await page(`limit=1&cursor=${champion + 1}`)).versions);
    return { name, versions };
  });
  return { models: await Promise.all(found), unreachable };
}

const day = (night) => utc(night.due_at).replace(" 00:00", "");
const said = ({ judged: { metric, difference, difference_low: low, difference_high: high } }) =>
  `${metric} ${difference > 0 ? "+" : ""}${number(difference)} (${number(low)} to ${number(high)})`;

/** The difference to the champion that each night's model was measured against, with its interval; the newest last. */
function Differences({ nights }) {
  const measured = nights.filter(({ judged: each }) => isFinite(each?.difference)).reverse();
  const metric = measured.at(-1)?.judged.metric; // the gate's of today: of others the differences mean something else
  const judged = measured.filter(({ judged: each }) => each.metric === metric);
  if (judged.length === 0) return h(Text, null, "No night has been measured against a champion yet.");
  const limits = judged.flatMap(({ judged: each }) => [each.difference, each.difference_low, each.difference_high]);
  const finite = [0, ...limits.filter(isFinite)];
  let [low, high] = [Math.min(...finite), Math.max(...finite)];
  if (low === high) [low, high] = [-1, 1];
  const space = (WIDTH - LEFT - RIGHT) / judged.length;
  const x = (at) => LEFT + (at + 0.5) * space;
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const words = { fill: "currentColor", style: { fontSize: "11px" } };
  return h(
    Box,
    { borderWidth: "1px", borderRadius: "md", padding: 2, maxWidth: "44rem" },
    h(Text, { fontSize: "sm", fontWeight: "bold" }, `${metric}: difference to the champion of then, with its interval`),
    h(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%", role: "group",
        "aria-label": `${metric}, difference to the champion over ${judged.length} nights`,
      },
      [low, 0, high]
        .filter((value, at) => at === 1 || value !== 0)
        .map((value) =>
          h(
            "g",
            { key: value },
            h("line", {
              x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), stroke: "currentColor",
              strokeOpacity: value === 0 ? 0.7 : 0.15,
            }),
            h("text", { x: LEFT - 5, y: y(value) + 4, textAnchor: "end", ...words }, number(value, 2)),
          ),
        ),
      judged.map((night, at) => {
        const { difference, difference_low: from, difference_high: to } = night.judged;
        const colour = FILLS[night.standing] ?? "#888888";
        return h(
          "a",
          { key: night.run, href: runPlace(night.run), "aria-label": `${day(night)}, ${night.standing}: ${said(night)}` },
          h("title", null, `${day(night)}, ${night.standing}: ${said(night)}`),
          isFinite(from) &&
            isFinite(to) &&
            h("line", { x1: x(at), x2: x(at), y1: y(from), y2: y(to), stroke: colour, strokeWidth: 2 }),
          h("circle", {
            cx: x(at), cy: y(difference), r: 5, stroke: colour, strokeWidth: 2,
            fill: night.standing === "promoted" ? colour : "none",
          }),
        );
      }),
      h("text", { x: LEFT, y: HEIGHT - 6, ...words }, day(judged[0])),
      judged.length > 1 &&
        h("text", { x: WIDTH - RIGHT, y: HEIGHT - 6, textAnchor: "end", ...words }, day(judged.at(-1))),
    ),
    h(Text, { fontSize: "xs" }, "Filled: promoted. Each is a link to its night."),
  );
}

const Nights = ({ nights }) =>
  h(Rows, {
    head: ["night, UTC", "standing", "what came of it", "difference", "data until, UTC", "report"],
    rows: nights.map((night) => [
      h(To, { href: runPlace(night.run) }, day(night)),
      h(Standing, { standing: night.standing }),
      h(Said, { fontSize: "sm" }, night.said),
      isFinite(night.judged?.difference) ? said(night) : "",
      night.judged && utc(night.judged.interval[1]),
      night.judged?.report && h(To, { href: address(night.judged.report) }, "Report"),
    ]),
  });

/** The gate's metric of a version, on the rows held out on its night. */
function measured({ metrics }) {
  const name = Object.keys(metrics ?? {}).find((each) => `candidate.${each}` in metrics);
  return name === undefined ? "" : `${name} ${number(metrics[name])}`;
}

const Versions = ({ versions }) =>
  h(Rows, {
    head: ["version", "stage", "registered", "measured at", "why", "what to do"],
    rows: versions.map((each) => [
      [each.version, each.semantic_version].filter(Boolean).join(", "),
      each.stage ?? "",
      h(Moment, { at: each.registered_at }),
      measured(each),
      h(Said, { fontSize: "sm" }, each.reason),
      // By keys of their own: a row may be another version's tomorrow, and what was asked of this one is not of that.
      each.stage === "production" && versions.length > 1 ? h(RollBack, { key: each.version, model: each.name, version: each.version })
      : each.stage === "staging" ? h(AskProduction, { key: each.version, model: each.name, version: each.version })
      : null,
    ]),
  });

function ModelPage({ pipeline }) {
  useTitle(`Model of ${pipeline}`);
  const { found, problem, isMissing } = useLooks((signal) => nightsOf(pipeline, signal), () => false, pipeline);
  // MLflow is asked once, and when a night has put another version into production.
  const newest = found?.nights.find((night) => night.standing === "promoted")?.run ?? "";
  const registry = useLooks((signal) => versionsOf(pipeline, signal), () => true, `${pipeline} ${newest}`);
  if (isMissing) return h(NoPipeline);
  if (found === null) {
    return problem ? h(Problem, { said: problem }) : h(Text, { role: "status" }, "Looking at the nights");
  }
  const { nights } = found;
  const part = (title) => h(Heading, { as: "h2", size: "md", marginTop: 4, marginBottom: 2 }, title);
  return h(
    Fragment,
    null,
    h(Problem, { said: problem, isOld: true }),
    nights.length === 0 ? h(Text, null, "It has not run yet.") : h(Differences, { nights }),
    nights.length > 0 && part("Nights"),
    nights.length > 0 && h(Nights, { nights }),
    h(Problem, { said: [registry.problem, ...(registry.found?.unreachable ?? [])].filter(Boolean).join("; ") }),
    (registry.found?.models ?? []).map(({ name, versions }) =>
      h(Fragment, { key: name }, part(`Versions of ${name}`), h(Versions, { versions }), versions.length > 1 && h(Compare, { model: name, versions })),
    ),
  );
}

globalThis["Pipeline model"] = ({ dagId }) => h(Tab, null, h(ModelPage, { pipeline: dagId }));
