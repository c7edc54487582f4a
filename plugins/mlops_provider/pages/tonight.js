// The page Tonight: how all pipelines stand, what needs a person first. Airflow's pages give React and Chakra UI, and
// call what this module leaves under its name; nothing is built.

const { createElement: h, useEffect, useState } = globalThis.React;
const { Badge, Box, Button, Flex, Heading, Link, Text } = globalThis.ChakraUI;

const LOOK_MS = 10_000;
const PATIENCE_MS = 30_000;
const COLOURS = {
  broken: "red", failed: "red", asked: "yellow", held: "orange", stopped: "orange",
  running: "blue", promoted: "green", done: "green", idle: "gray",
};
const WORDS = {
  broken: "broken", failed: "failed", asked: "waits for an answer", held: "held: paused", stopped: "nothing promoted",
  running: "running", promoted: "promoted", done: "done", idle: "has not run",
};

// Below Airflow's own address, which may have a prefix.
const address = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href;

function ago(moment) {
  const minutes = Math.round((Date.now() - Date.parse(moment)) / 60_000);
  const format = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
  if (Math.abs(minutes) < 60) return format.format(-minutes, "minute");
  if (Math.abs(minutes) < 36 * 60) return format.format(-Math.round(minutes / 60), "hour");
  return format.format(-Math.round(minutes / 1440), "day");
}

const Moment = ({ at, before }) =>
  h("time", { dateTime: at, title: new Date(at).toLocaleString() }, `${before}${ago(at)}`);

function Line({ pipeline }) {
  const [isOpen, setOpen] = useState(false);
  const { name, standing, said, since, questions, next_run: next, is_paused: isPaused } = pipeline;
  const isLong = said.length > 160 || said.includes("\n");
  return h(
    Box,
    { as: "li", borderWidth: "1px", borderRadius: "md", padding: 3, marginBottom: 2, listStyleType: "none" },
    h(
      Flex,
      { gap: 2, alignItems: "baseline", flexWrap: "wrap" },
      h(Link, { href: address(pipeline.airflow), fontWeight: "bold" }, name),
      h(Badge, { colorPalette: COLOURS[standing] }, WORDS[standing]),
      since && h(Text, { fontSize: "sm", color: "fg.muted" }, h(Moment, { at: since, before: "" })),
      h(
        Text,
        { fontSize: "sm", color: "fg.muted", marginLeft: { base: 0, md: "auto" } },
        isPaused ? "paused" : next && h(Moment, { at: next, before: "next " }),
      ),
    ),
    h(
      Text,
      { marginTop: 1, whiteSpace: "pre-wrap", overflowWrap: "anywhere", lineClamp: isOpen || !isLong ? undefined : 2 },
      said,
    ),
    questions.map((question) => h(Question, { key: question.address, name, question })),
    isLong &&
      h(
        Button,
        {
          size: "sm", variant: "outline", marginTop: 2, "aria-expanded": isOpen,
          "aria-label": `${isOpen ? "Less" : "All of it"}: ${name}`, onClick: () => setOpen(!isOpen),
        },
        isOpen ? "Less" : "All of it",
      ),
  );
}

const Question = ({ name, question: { subject, approvers, address: form } }) =>
  h(
    Flex,
    { gap: 2, marginTop: 2, alignItems: "baseline", flexWrap: "wrap" },
    h(
      Button,
      { asChild: true, size: "sm" },
      h("a", { href: address(form), title: subject, "aria-label": `Answer: ${name}: ${subject}` }, "Answer"),
    ),
    approvers.length > 0 && h(Text, { fontSize: "sm" }, `May answer: ${approvers.join(", ")}`),
  );

async function pipelinesNow(signal) {
  const answer = await fetch(address("mlops/api/v1/tonight"), { credentials: "same-origin", signal });
  const isJson = (answer.headers.get("content-type") ?? "").includes("json");
  if (answer.status === 401) throw new Error("log in again");
  if (!isJson) throw new Error(`the server answers ${answer.status} ${answer.statusText}`);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail ?? `the server answers ${answer.status}`);
  return body.pipelines;
}

function Tonight() {
  const [pipelines, setPipelines] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let timer = 0;
    let current = null; // the look that is under way; an earlier one has nothing to say any more
    const look = async () => {
      clearTimeout(timer);
      current?.abort();
      const mine = new AbortController();
      current = mine;
      const limit = setTimeout(() => mine.abort(new Error("the server does not answer")), PATIENCE_MS);
      try {
        const found = await pipelinesNow(mine.signal);
        if (mine !== current) return;
        setPipelines(found);
        setProblem("");
      } catch (error) {
        if (mine !== current) return;
        setProblem(`This may be old: ${error.message}`);
      } finally {
        clearTimeout(limit);
      }
      // Where nobody looks, nothing is asked for.
      if (!document.hidden) timer = setTimeout(look, LOOK_MS);
    };
    const seen = () => (document.hidden ? clearTimeout(timer) : look());
    document.addEventListener("visibilitychange", seen);
    look();
    return () => {
      document.removeEventListener("visibilitychange", seen);
      clearTimeout(timer);
      const last = current;
      current = null;
      last?.abort();
    };
  }, []);
  return h(
    Box,
    { as: "main", padding: 4, maxWidth: "60rem", marginX: "auto", overflowY: "auto", height: "100%" },
    h(Heading, { as: "h1", size: "xl", marginBottom: 3 }, "Tonight"),
    problem && h(Text, { role: "alert", color: "fg.error", marginBottom: 2 }, problem),
    pipelines === null && !problem && h(Text, { role: "status" }, "Looking at the pipelines"),
    pipelines !== null && pipelines.length === 0 && h(Text, null, "There is no pipeline that you may read."),
    h(Box, { as: "ul", role: "list", padding: 0 }, (pipelines ?? []).map((each) => h(Line, { key: each.name, pipeline: each }))),
  );
}

globalThis.Tonight = Tonight; // by the name that the plugin gives it, which is what the menu shows
