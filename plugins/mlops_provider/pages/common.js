// What our pages share. Airflow's pages give React and Chakra UI; nothing is built.

const { createElement: h, useEffect, useState } = globalThis.React;
const { Badge, Box, Link, Table, Text } = globalThis.ChakraUI;

const LOOK_MS = 10_000;
const PATIENCE_MS = 30_000;
const SILENT_MS = 45_000; // after which something is wrong with a stream: it is opened anew, and tells all, every 25 s
const COLOURS = {
  broken: "red", failed: "red", asked: "yellow", held: "orange", stopped: "orange",
  running: "blue", promoted: "green", done: "green", idle: "gray",
};
const WORDS = {
  broken: "broken", failed: "failed", asked: "waits for an answer", held: "held: paused", stopped: "nothing promoted",
  running: "running", promoted: "promoted", done: "done", idle: "has not run",
};

export const TONIGHT = "/plugin/mlops-tonight";

/** Below Airflow's own address, which may have a prefix. A whole address stays; of what is no address: undefined. */
export function address(path) {
  try {
    return new URL(path.replace(/^\//, ""), document.baseURI).href;
  } catch {
    return undefined;
  }
}

/** Where a run is shown on a page of its own, which fits a phone. */
export const runPlace = (run) => address(`${TONIGHT}/${encodeURIComponent(run)}`);

export const isFinite = (value) => typeof value === "number" && Number.isFinite(value);

export const number = (value, digits = 5) => (isFinite(value) ? String(Number(value.toPrecision(digits))) : "-");

const API = "mlops/api/v1";

export const api = (path) => address(`${API}/${path}`);

/** Ask our own API, by a path below its own. */
export const ask = (path, signal) => askAirflow(`${API}/${path}`, signal);

export async function askAirflow(path, signal, options = {}) {
  const answer = await fetch(address(path), { credentials: "same-origin", signal, ...options });
  const isJson = (answer.headers.get("content-type") ?? "").includes("json");
  const body = isJson ? await answer.json() : null;
  if (answer.ok && isJson) return body;
  const said = body?.detail ?? `the server answers ${answer.status} ${answer.statusText}`;
  const error = new Error(answer.status === 401 ? "log in again" : said);
  error.status = answer.status;
  throw error;
}

/**
 * Look again and again, while somebody looks at the page.
 *
 * @param look is given an AbortSignal, and returns a promise of what is found
 * @param isOver says whether what was found will not change any more
 * @param key another one begins anew
 */
export function useLooks(look, isOver, key) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState("");
  const [isMissing, setMissing] = useState(false);
  useEffect(() => {
    let timer = 0;
    let current = null; // the look that is under way; an earlier one has nothing to say any more
    let isDone = false;
    const again = async () => {
      clearTimeout(timer);
      current?.abort();
      const mine = new AbortController();
      current = mine;
      const limit = setTimeout(() => mine.abort(new Error("the server does not answer")), PATIENCE_MS);
      try {
        const now = await look(mine.signal);
        if (mine !== current) return;
        isDone = isOver(now);
        setFound(now);
        setMissing(false);
        setProblem("");
      } catch (error) {
        if (mine !== current) return;
        isDone = error.status === 404; // it will not come by itself
        setMissing(isDone);
        setProblem(error.message);
      } finally {
        clearTimeout(limit);
      }
      // Where nobody looks, nothing is asked for.
      if (!document.hidden && !isDone) timer = setTimeout(again, LOOK_MS);
    };
    const seen = () => (document.hidden ? clearTimeout(timer) : again());
    document.addEventListener("visibilitychange", seen);
    again();
    return () => {
      document.removeEventListener("visibilitychange", seen);
      clearTimeout(timer);
      const last = current;
      current = null;
      last?.abort();
    };
  }, [key]);
  return { found, problem, isMissing };
}

/**
 * Watch a stream of the server that tells all of it with each event, while somebody looks at the page.
 *
 * @param path below our own API
 * @param parts by event, what makes of what was found before, and of what that event tells, what is found now
 */
export function useTold(path, event, parts = {}) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let source = null;
    let waiting = 0;
    let isGone = false;
    let failures = 0; // of the stream, since it has told something
    const why = async () => {
      // A stream says nothing of why it does not come: the same is asked for once.
      try {
        const now = await ask(path.replace(/\/stream$/, ""), AbortSignal.timeout(PATIENCE_MS));
        if (isGone) return;
        setFound(now);
        setProblem("");
      } catch (error) {
        if (!isGone) setProblem(error.name === "TimeoutError" ? "the server does not answer" : error.message);
      }
      if (!isGone && !document.hidden) open();
    };
    const open = () => {
      clearTimeout(waiting);
      source?.close();
      waiting = setTimeout(why, SILENT_MS);
      source = new EventSource(api(path));
      const told = (part) => ({ data }) => {
        clearTimeout(waiting);
        waiting = setTimeout(why, SILENT_MS);
        failures = 0;
        setFound((before) => part(before, JSON.parse(data)));
        setProblem("");
      };
      source.addEventListener(event, told((_, now) => now));
      for (const [name, part] of Object.entries(parts)) source.addEventListener(name, told(part));
      source.addEventListener("error", () => {
        // A browser opens it again by itself, but not after an answer that is none.
        if (source.readyState !== EventSource.CLOSED) return;
        clearTimeout(waiting);
        waiting = setTimeout(why, failures === 0 ? 0 : LOOK_MS);
        failures += 1;
      });
    };
    const close = () => {
      clearTimeout(waiting);
      source?.close();
    };
    const seen = () => (document.hidden ? close() : open());
    document.addEventListener("visibilitychange", seen);
    open();
    return () => {
      isGone = true;
      document.removeEventListener("visibilitychange", seen);
      close();
    };
  }, [path, event]);
  return { found, problem };
}

function ago(moment) {
  const minutes = Math.round((Date.now() - Date.parse(moment)) / 60_000);
  const format = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
  if (Math.abs(minutes) < 60) return format.format(-minutes, "minute");
  if (Math.abs(minutes) < 36 * 60) return format.format(-Math.round(minutes / 60), "hour");
  return format.format(-Math.round(minutes / 1440), "day");
}

/** A moment as all read it alike: `2024-01-12 00:00`, UTC. */
export const utc = (moment) => new Date(moment).toISOString().slice(0, 16).replace("T", " ");

/** Say in the browser's title and history which page this is. */
export function useTitle(title) {
  useEffect(() => {
    const before = document.title;
    document.title = title;
    return () => {
      document.title = before;
    };
  }, [title]);
}

export const duration = (seconds) =>
  seconds < 120 ? `${Math.round(seconds)} s`
  : seconds < 7200 ? `${Math.round(seconds / 60)} min`
  : `${(seconds / 3600).toFixed(1)} h`;

const STALE_MS = 180_000;

/** How far a training is, as a bar and in words. */
export function Progress({ training }) {
  const { name, step, num_steps: steps, loss, seconds_left: left, goodput, told_at: at } = training;
  const isStale = at !== null && Date.now() - Date.parse(at) > STALE_MS;
  const words = [
    `${number(step, 9)} of ${number(steps, 9)} steps`,
    loss !== null && `loss ${number(loss, 4)}`,
    left !== null && `up to ${duration(left)} left`,
    goodput !== null && `goodput ${Math.floor(100 * goodput)} %`,
  ];
  return h(
    Box,
    { as: "li", listStyleType: "none", fontSize: "sm", marginTop: 1 },
    h(
      Box,
      {
        role: "progressbar", "aria-label": `Progress: ${name}`, "aria-valuemin": 0, "aria-valuemax": steps, "aria-valuenow": step,
        height: "6px", borderRadius: "full", background: "bg.emphasized", overflow: "hidden",
      },
      h(Box, { height: "100%", width: `${(100 * step) / Math.max(1, steps)}%`, background: "blue.solid" }),
    ),
    h(
      Text,
      { fontSize: "sm" },
      `${name}: ${words.filter(Boolean).join(", ")}`,
      isStale && h(Text, { as: "span", color: { base: "orange.700", _dark: "orange.300" } }, ", ", h(Moment, { at, before: "last heard of " })),
    ),
  );
}

const MOST_BARS = 5;

export const Trainings = ({ trainings }) =>
  trainings.length === 0
    ? null
    : h(
        Box,
        { as: "ul", role: "list", "aria-label": "Trainings", padding: 0, marginY: 1 },
        trainings.slice(0, MOST_BARS).map((training) => h(Progress, { key: training.run, training })),
        trainings.length > MOST_BARS && h(Text, { as: "li", fontSize: "sm", listStyleType: "none" }, `and ${trainings.length - MOST_BARS} more`),
      );

export const Moment = ({ at, before = "" }) =>
  h("time", { dateTime: at, title: new Date(at).toLocaleString() }, `${before}${ago(at)}`);

export const Problem = ({ said, isOld }) =>
  said ? h(Text, { role: "alert", color: { base: "red.700", _dark: "red.300" }, marginBottom: 2 }, isOld ? `This may be old: ${said}` : said) : null;

/** A link, in the colour that Airflow's have. */
export const To = (props) => h(Link, { color: "fg.info", ...props });

const REPORT = /((?:pipelines|experiments)\/[\w./-]+\/report\.[0-9a-f]{12}\.html)/;

/** Text as people and programs have written it, in its own lines; the report that a step names is a link. */
export const Said = ({ children, ...props }) =>
  h(
    Text,
    { whiteSpace: "pre-wrap", overflowWrap: "anywhere", ...props },
    String(children ?? "").split(REPORT).map((part, at) =>
      at % 2 === 1 ? h(To, { key: at, href: address(`mlops/reports/${part}`), textDecoration: "underline" }, "report") : part,
    ),
  );

export const Standing = ({ standing }) => h(Badge, { colorPalette: COLOURS[standing] }, WORDS[standing]);

/** What may be wider than a phone, which one can move without a mouse, too. */
export const Wide = ({ label, children }) =>
  h(Box, { overflowX: "auto", tabIndex: 0, role: "group", "aria-label": label }, children);

export const Rows = ({ head, rows }) =>
  h(
    Wide,
    { label: `Table by ${head[0]}` },
    h(
      Table.Root,
      { size: "sm" },
      h(
        Table.Header,
        null,
        h(Table.Row, null, head.map((each) => h(Table.ColumnHeader, { key: each, scope: "col" }, each))),
      ),
      h(
        Table.Body,
        null,
        rows.map((row, at) =>
          h(Table.Row, { key: at }, row.map((cell, column) => h(Table.Cell, { key: column }, cell))),
        ),
      ),
    ),
  );

/** What a tab shows that Airflow gives to every DAG, where the DAG is none of ours. */
export const NoPipeline = () => h(Text, null, "This DAG is no pipeline, or you may not read its runs.");

export const Tab = (props) => h(Box, { as: "main", "data-mlops": "", padding: 3, overflowY: "auto", height: "100%", ...props });
