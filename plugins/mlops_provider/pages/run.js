// A run of a pipeline: what came of it, its steps, its curves while they grow, and what happened to it.

import { Chart } from "./chart.js";
import {
  address, api, ask, askAirflow, duration, Moment, NoPipeline, number, Problem, Rows, Said, Tab, To, Trainings, useLooks, useTitle,
  utc,
} from "./common.js";
import { Search } from "./search.js";

const { createElement: h, Fragment, useEffect, useState } = globalThis.React;
const { Badge, Box, Button, Flex, Heading, SimpleGrid, Text } = globalThis.ChakraUI;

const FINISHED = ["success", "failed"];
const COLOURS = {
  success: "green", failed: "red", upstream_failed: "orange", running: "blue", deferred: "blue", queued: "gray",
  awaiting_input: "yellow", up_for_retry: "orange", skipped: "gray",
};
const MARKS = ["failed", "hung", "slow", "node_lost", "interrupted", "resumed"]; // events that are drawn into curves
const DRAW_MS = 250; // between two drawings of curves that grow
const AGAIN_MS = 10_000;
const MOST_EVENTS = 200;
const MOST_CHECKPOINTS = 20;

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

const searched = new Map(); // what a search has found, by run, and how much of it had ended when that was asked

/** The search of a run: asked for anew when one more trial has ended. Other tasks may be mapped, too: then there is none. */
async function searchOf(id, { state, tasks, steps }, signal) {
  const mapped = tasks.filter((task) => task.map_index >= 0);
  if (mapped.length === 0 && !steps.some(({ step }) => /^(tune$|trial )/.test(step))) return null;
  const ended = `${state} ${steps.length} ${tasks.filter((task) => FINISHED.includes(task.state)).length}`;
  if (searched.get(id)?.ended !== ended) {
    const place = `studies/${encodeURIComponent(id)}`;
    try {
      const [study, { trials }] = await Promise.all([ask(place, signal), ask(`${place}/trials`, signal)]);
      searched.set(id, { ended, found: { study, trials } });
    } catch (error) {
      if (error.status !== 404) throw error;
      searched.set(id, { ended, found: null });
    }
  }
  return searched.get(id).found;
}

/** Null where the DAG of the run is no pipeline of ours, though it may have our steps. */
async function verdictOf(place, { kind }, signal) {
  if (kind !== "night") return null;
  try {
    return await ask(`${place}/verdict`, signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    return null;
  }
}

async function look(id, signal) {
  const place = `runs/${encodeURIComponent(id)}`;
  const run = await ask(place, signal);
  // Where one of them cannot be read, the rest is worth seeing.
  const [events, checkpoints, verdict, search, progress] = await Promise.allSettled([
    ask(`${place}/events`, signal),
    run.kind === "rollback" ? { checkpoints: [] } : ask(`${place}/checkpoints`, signal),
    verdictOf(place, run, signal),
    searchOf(id, run, signal),
    FINISHED.includes(run.state) ? { trainings: [] } : ask(`${place}/progress`, signal),
  ]);
  const links = await linksOf(id, run.tasks, signal);
  const problems = [events, checkpoints, verdict, search, progress]
    .filter((each) => each.status === "rejected")
    .map((each) => each.reason.message);
  return {
    run,
    events: events.value?.events ?? [],
    checkpoints: checkpoints.value?.checkpoints ?? [],
    verdict: verdict.value ?? null,
    search: search.value ?? null,
    trainings: progress.value?.trainings ?? [],
    links,
    problem: [...new Set(problems)].join("; "),
  };
}

const known = new Map(); // links by run, task and try, and how often they were asked for
const MOST_ASKED = 3; // times for links that are not there: they come a moment after the task's end

/** What the tasks have left as links, by task: reports, above all that of one that failed. */
async function linksOf(id, tasks, signal) {
  const [dag, run] = id.split("@").map(encodeURIComponent);
  const ended = tasks.filter(({ state, map_index: index }) => FINISHED.includes(state) && index === -1);
  const found = ended.map(async ({ task_id: task, try_number: number }) => {
    const key = `${id}/${task}/${number}`;
    const before = known.get(key) ?? { links: [], asked: 0 };
    if (before.links.length === 0 && before.asked < MOST_ASKED) {
      const place = `api/v2/dags/${dag}/dagRuns/${run}/taskInstances/${encodeURIComponent(task)}/links`;
      const { extra_links: links } = await askAirflow(place, signal);
      known.set(key, { links: Object.entries(links).filter(([name, at]) => at && name !== "Curves"), asked: before.asked + 1 });
    }
    return [task, (known.get(key) ?? before).links];
  });
  const settled = await Promise.allSettled(found);
  return Object.fromEntries(settled.filter((each) => each.status === "fulfilled").map((each) => each.value));
}

/** Curves by metric, each with a line for each training: `{metric: [{run, name, points: Map(step => {value, at})}]}`. */
function useCurves(id) {
  const [curves, setCurves] = useState({});
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let source = null;
    let timer = 0;
    let drawing = 0;
    let isOver = false;
    const open = () => {
      clearTimeout(timer);
      source?.close();
      const lines = new Map();
      source = new EventSource(api(`runs/${encodeURIComponent(id)}/metrics/stream`));
      const draw = () => {
        drawing = 0;
        const byMetric = {};
        // By name: a training has one colour in all charts.
        const sorted = [...lines.values()].sort((one, other) => (one.name < other.name ? -1 : 1));
        for (const line of sorted) (byMetric[line.metric] ??= []).push(line);
        setCurves(byMetric);
      };
      source.addEventListener("value", (event) => {
        const { run, name, metric, step, value, at } = JSON.parse(event.data);
        const key = `${run}/${metric}`;
        if (!lines.has(key)) lines.set(key, { run, name, metric, points: new Map() });
        lines.get(key).points.set(step, { value, at });
        setProblem("");
        drawing ||= setTimeout(draw, DRAW_MS);
      });
      const stop = (said) => {
        isOver = true;
        setProblem(said);
        source.close();
      };
      source.addEventListener("end", () => stop(""));
      source.addEventListener("problem", (event) => stop(JSON.parse(event.data).detail));
      source.addEventListener("away", (event) => {
        setProblem(JSON.parse(event.data).detail);
        source.close(); // a browser would open it again at once
        if (!document.hidden) timer = setTimeout(open, AGAIN_MS);
      });
      source.addEventListener("error", () => {
        // A browser opens it again by itself, but not after an answer that is none.
        if (source.readyState !== EventSource.CLOSED || isOver || document.hidden) return;
        setProblem("The curves cannot be read now");
        timer = setTimeout(open, AGAIN_MS);
      });
    };
    const seen = () => {
      if (isOver) return;
      if (document.hidden) {
        clearTimeout(timer);
        source?.close();
      } else open();
    };
    document.addEventListener("visibilitychange", seen);
    open();
    return () => {
      document.removeEventListener("visibilitychange", seen);
      clearTimeout(timer);
      clearTimeout(drawing);
      source?.close();
    };
  }, [id]);
  return { curves, problem };
}

// What a training is judged by comes first, what is measured of the machine last: as notebooks show it.
const rank = (metric) =>
  [metric.includes("/"), !metric.startsWith("validation"), !metric.includes("loss")].map(Number).join("") + metric;

function Curves({ id, events }) {
  const { curves, problem } = useCurves(id);
  const marks = events.filter((event) => MARKS.includes(event.kind));
  const drawn = Object.entries(curves)
    .filter(([, lines]) => lines.some((line) => line.points.size > 1))
    .sort(([one], [other]) => (rank(one) < rank(other) ? -1 : 1));
  return h(
    Fragment,
    null,
    h(Problem, { said: problem }),
    drawn.length > 0 && h(Heading, { as: "h2", size: "md", marginY: 3 }, "Curves"),
    h(
      SimpleGrid,
      { minChildWidth: "17rem", gap: 3 },
      drawn.map(([metric, lines]) => h(Chart, { key: metric, title: metric, lines, marks })),
    ),
  );
}

/** The tasks of a run, in the order in which they began; those of an expanded one together. */
function stepsOf({ tasks }, events) {
  const times = new Map();
  for (const { kind, task, at } of events) {
    if (kind === "task_started") times.set(task, { begun: Date.parse(at) });
    if (kind === "task_ended" && times.has(task)) times.get(task).ended = Date.parse(at);
  }
  const steps = new Map();
  for (const { task_id: id, map_index: index, state, try_number: tries } of tasks) {
    const step = steps.get(id) ?? { id, states: new Map(), asking: [], isMapped: index !== -1, tries: 0, begun: Infinity, ended: -Infinity };
    if (state === "awaiting_input") step.asking.push(index);
    const { begun = Infinity, ended = Date.now() } = times.get(index === -1 ? id : `${id}[${index}]`) ?? {};
    step.states.set(state ?? "none", (step.states.get(state ?? "none") ?? 0) + 1);
    step.tries = Math.max(step.tries, tries);
    step.begun = Math.min(step.begun, begun);
    if (begun !== Infinity) step.ended = Math.max(step.ended, ended);
    steps.set(id, step);
  }
  return [...steps.values()].sort((one, other) => (one.begun === other.begun ? 0 : one.begun - other.begun));
}

const Step = ({ step: { id, states, asking, isMapped, tries, begun, ended }, place, links }) =>
  h(
    Flex,
    { as: "li", gap: 2, alignItems: "baseline", flexWrap: "wrap", listStyleType: "none" },
    h(To, { href: `${place}/tasks/${encodeURIComponent(id)}${isMapped ? "/mapped" : ""}`, minWidth: "6rem" }, id),
    [...states].map(([state, count]) =>
      h(
        Badge,
        { key: state, colorPalette: COLOURS[state] ?? "gray" },
        state === "none" ? "to come" : state.replaceAll("_", " "),
        states.size > 1 || count > 1 ? ` ${count}` : "",
      ),
    ),
    begun !== Infinity && h(Text, { fontSize: "sm", color: "fg.muted" }, duration((ended - begun) / 1000)),
    tries > 1 && h(Text, { fontSize: "sm", color: "fg.muted" }, `try ${tries}`),
    links.map(([name, at]) =>
      h(To, { key: name, href: address(at), fontSize: "sm", "aria-label": `${name}: ${id}` }, name),
    ),
    asking.map((index) => {
      const task = `${place}/tasks/${encodeURIComponent(id)}${index === -1 ? "" : `/mapped/${index}`}`;
      const form = h("a", { href: `${task}/required_actions`, "aria-label": `Answer: ${id}` }, "Answer");
      return h(Button, { key: index, asChild: true, size: "xs" }, form);
    }),
  );

function Training({ training, said, hasLinks }) {
  const { metrics, validation, champion, passed, report, tracking, reason, seed, epoch } = training;
  const own = metrics ?? Object.fromEntries(Object.entries(validation).map(([name, value]) => [`candidate.${name}`, value]));
  const within = (name) => {
    const [low, high] = [own[`${name}.low`], own[`${name}.high`]];
    return low == null || high == null ? number(own[name]) : `${number(own[name])} (${number(low)} to ${number(high)})`;
  };
  const names = Object.keys(own)
    .filter((name) => name.startsWith("candidate.") && !/\.(low|high)$/.test(name))
    .map((name) => name.replace("candidate.", ""))
    .sort((one, other) => (other in own) - (one in own)); // the gate's own metric first
  return h(
    Box,
    { marginTop: 3 },
    h(
      Heading,
      { as: "h2", size: "md" },
      metrics ? "Evaluation" : "Validation",
      h(Text, { as: "span", fontSize: "sm", color: "fg.muted", fontWeight: "normal" }, ` seed ${seed}, best epoch ${epoch}`),
      passed !== null && h(Badge, { marginLeft: 2, colorPalette: passed ? "green" : "orange" }, passed ? "passed" : "did not pass"),
    ),
    reason && !said.includes(reason) && h(Said, { fontSize: "sm" }, reason),
    h(Rows, {
      head: ["metric", "this model", ...(champion ? [`version ${champion}, the champion`, "difference"] : [])],
      rows: names.map((name) => [
        name,
        within(`candidate.${name}`),
        ...(champion ? [within(`champion.${name}`), within(`difference.${name}`)] : []),
      ]),
    }),
    hasLinks &&
      h(
        Flex,
        { gap: 3, marginTop: 1 },
        report && h(To, { href: address(report) }, "Report"),
        tracking && h(To, { href: tracking }, "MLflow run"),
      ),
  );
}

/** Said above all: somebody's note, and what happened. */
function said({ state, note, failure, tasks }, verdict) {
  if (verdict !== null) return [verdict.is_noted ? note : "", verdict.happened].filter(Boolean).join("\n");
  // A run that is cleared keeps its note until it ends again.
  if (FINISHED.includes(state)) return [note, note?.includes(failure ?? "") ? "" : failure].filter(Boolean).join("\n");
  if (state === "queued") return "It waits to begin.";
  const doing = tasks.filter((task) => ["running", "deferred", "awaiting_input"].includes(task.state));
  const names = [...new Set(doing.map((task) => task.task_id))];
  return state === "running" && names.length > 0 ? `${names.join(", ")} under way` : "";
}

/** Since when, whether production is safe, what has changed, and what to do. */
const Sentences = ({ verdict: { sentences, action } }) =>
  h(
    Box,
    { as: "ul", role: "list", "aria-label": "Verdict", padding: 0, marginBottom: 3 },
    sentences.map((sentence) =>
      h(
        Said,
        {
          key: sentence, as: "li", listStyleType: "none", fontSize: "sm",
          fontWeight: action && sentence.endsWith(action) ? "bold" : undefined,
        },
        sentence,
      ),
    ),
  );

const newest = (most, all) => (all.length > most ? `the newest ${most} of ${all.length}` : all.length);

const Folded = ({ title, children }) =>
  h(Box, { as: "details", marginTop: 3 }, h("summary", null, title), children);

export function RunPage({ id }) {
  useTitle(id);
  const { found, problem } = useLooks((signal) => look(id, signal), ({ run, problem: said }) => FINISHED.includes(run.state) && !said, id);
  if (found === null) {
    return h(Fragment, null, h(Problem, { said: problem }), !problem && h(Text, { role: "status" }, "Looking at the run"));
  }
  const { run, events, checkpoints, verdict, search, trainings, links } = found;
  const [place, told] = [address(run.airflow), said(run, verdict)];
  return h(
    Fragment,
    null,
    h(Problem, { said: problem, isOld: true }),
    h(Problem, { said: found.problem }),
    h(
      Flex,
      { gap: 2, alignItems: "baseline", flexWrap: "wrap" },
      h(Heading, { as: "h1", size: "lg" }, run.pipeline ?? "rollback"),
      h(Badge, { colorPalette: COLOURS[run.state] }, run.state),
      run.started_at && h(Text, { fontSize: "sm", color: "fg.muted" }, h(Moment, { at: run.started_at, before: "begun " })),
      run.started_at &&
        run.ended_at &&
        h(Text, { fontSize: "sm", color: "fg.muted" }, `took ${duration((Date.parse(run.ended_at) - Date.parse(run.started_at)) / 1000)}`),
    ),
    h(
      Flex,
      { gap: 3, flexWrap: "wrap", fontSize: "sm" },
      h(To, { href: place, overflowWrap: "anywhere" }, run.id),
      run.kind === "night" &&
        h(To, { href: address(`dags/${encodeURIComponent(run.pipeline)}/plugin/mlops-model`) }, "All its nights"),
    ),
    h(Said, { marginY: 2 }, told),
    verdict !== null && verdict.sentences.length > 0 && h(Sentences, { verdict }),
    h(Box, { as: "ul", role: "list", "aria-label": "Steps", padding: 0 }, stepsOf(run, events).map((step) => h(Step, { key: step.id, step, place, links: links[step.id] ?? [] }))),
    h(Trainings, { trainings }),
    (run.result?.trainings ?? []).map((training) => h(Training, { key: training.checkpoint, training, said: told, hasLinks: run.kind === "experiment" })),
    search !== null && (search.trials.length > 0 || !FINISHED.includes(run.state)) && h(Search, search),
    run.kind !== "rollback" && h(Curves, { id, events }),
    checkpoints.length > 0 &&
      h(
        Folded,
        { title: `Checkpoints: ${newest(MOST_CHECKPOINTS, checkpoints)}` },
        h(Rows, {
          head: ["step", "epoch", "validation", "size", "saved"],
          rows: checkpoints.slice(0, MOST_CHECKPOINTS).map((each) => [
            each.is_best ? `${each.step}, the best` : each.step,
            each.epoch,
            Object.entries(each.validation).map(([name, value]) => `${name} ${number(value)}`).join(", "),
            megabytes(each.num_bytes),
            h(Moment, { at: each.saved_at }),
          ]),
        }),
      ),
    events.length > 0 &&
      h(
        Folded,
        { title: `What happened: ${newest(MOST_EVENTS, events)}` },
        h(Rows, {
          head: ["when, UTC", "what", "where"],
          rows: events.slice(-MOST_EVENTS).reverse().map((each) => [
            utc(each.at),
            each.kind.startsWith("task_") ? each.said : `${each.kind.replaceAll("_", " ")}: ${each.said}`,
            each.node ?? each.task ?? "",
          ]),
        }),
      ),
  );
}

/** A run of any DAG can be asked for, and only those of pipelines are shown: Airflow gives the tab to all. */
function RunTab({ dagId, runId }) {
  const place = `nights?pipeline=${encodeURIComponent(dagId)}&limit=1`;
  const { found, problem, isMissing } = useLooks((signal) => ask(place, signal), () => true, dagId);
  if (isMissing) return h(NoPipeline);
  return found === null ? h(Problem, { said: problem }) : h(RunPage, { id: `${dagId}@${runId}` });
}

globalThis["Pipeline run"] = (props) => h(Tab, null, h(RunTab, props));
