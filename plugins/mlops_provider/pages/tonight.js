// The page Tonight: how all pipelines stand, those that need a person first. A pipeline's name opens its run.

import { address, Moment, Problem, Said, Standing, To, TONIGHT, Trainings, useTitle, useTold } from "./common.js";
import { RunPage } from "./run.js";

const { createElement: h, useState } = globalThis.React;
const { Box, Button, Flex, Heading, Input, Text } = globalThis.ChakraUI;
const { Link: RouterLink, useLocation } = globalThis.ReactRouterDOM;

const Name = ({ pipeline: { name, run, airflow } }) =>
  run === null
    ? h(To, { href: address(airflow), fontWeight: "bold" }, name)
    : h(To, { asChild: true, fontWeight: "bold" }, h(RouterLink, { to: `${TONIGHT}/${encodeURIComponent(run)}` }, name));

function Line({ pipeline }) {
  const [isOpen, setOpen] = useState(false);
  const { name, standing, said, since, questions, trainings, next_run: next, is_paused: isPaused } = pipeline;
  const isLong = said.length > 160 || said.includes("\n");
  return h(
    Box,
    { as: "li", borderWidth: "1px", borderRadius: "md", padding: 3, marginBottom: 2, listStyleType: "none" },
    h(
      Flex,
      { gap: 2, alignItems: "baseline", flexWrap: "wrap" },
      h(Name, { pipeline }),
      h(Standing, { standing }),
      since && h(Text, { fontSize: "sm", color: "fg.muted" }, h(Moment, { at: since })),
      h(
        Text,
        { fontSize: "sm", color: "fg.muted", marginLeft: { base: 0, md: "auto" } },
        isPaused ? "paused" : next && h(Moment, { at: next, before: "next " }),
      ),
    ),
    h(Said, { marginTop: 1, lineClamp: isOpen || !isLong ? undefined : 2 }, said),
    h(Trainings, { trainings }),
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

const NEED_A_PERSON = ["broken", "failed", "asked", "held"];
const MANY = 12; // pipelines, from which on one looks for a name

/** What a screen reader says when it changes. */
function counted(pipelines) {
  const number = pipelines.filter(({ standing }) => NEED_A_PERSON.includes(standing)).length;
  return `${number === 0 ? "None" : number} of ${pipelines.length} ${number === 1 ? "needs" : "need"} a person`;
}

/** How far trainings are is told more often than all else. */
const PARTS = {
  trainings: (before, { trainings, problem }) =>
    before && {
      problem,
      pipelines: before.pipelines.map((each) => ({ ...each, trainings: trainings[each.name] ?? [] })),
    },
};

function Fleet() {
  useTitle("Tonight");
  const [sought, setSought] = useState("");
  const { found, problem } = useTold("tonight/stream", "tonight", PARTS);
  const pipelines = found?.pipelines ?? [];
  const shown = pipelines.filter(({ name }) => name.toLowerCase().includes(sought.trim().toLowerCase()));
  return h(
    globalThis.React.Fragment,
    null,
    h(Heading, { as: "h1", size: "xl", marginBottom: 3 }, "Tonight"),
    h(Problem, { said: problem, isOld: found !== null }),
    found?.problem && h(Text, { fontSize: "sm", color: "fg.muted" }, found.problem),
    found === null && !problem && h(Text, { role: "status" }, "Looking at the pipelines"),
    found !== null &&
      h(
        Text,
        { role: "status", color: "fg.muted", marginBottom: 2 },
        pipelines.length === 0 ? "There is no pipeline that you may read." : counted(pipelines),
      ),
    pipelines.length > MANY &&
      h(Input, {
        "aria-label": "Show those whose name has", placeholder: "name", size: "sm", marginBottom: 2, value: sought,
        onChange: (event) => setSought(event.target.value),
      }),
    h(Box, { as: "ul", role: "list", padding: 0 }, shown.map((each) => h(Line, { key: each.name, pipeline: each }))),
  );
}

function runOf(pathname) {
  const part = pathname.split(`${TONIGHT}/`)[1] ?? "";
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // of which there is no run
  }
}

function Tonight() {
  const { pathname } = useLocation();
  const run = runOf(pathname);
  return h(
    Box,
    { as: "main", "data-mlops": "", padding: 4, maxWidth: "60rem", marginX: "auto", overflowY: "auto", height: "100%" },
    run === "" && h(Fleet),
    run !== "" && h(To, { asChild: true, marginBottom: 3 }, h(RouterLink, { to: TONIGHT }, "All pipelines")),
    run !== "" && h(RunPage, { id: run }),
  );
}

globalThis.Tonight = Tonight; // by the name that the plugin gives it, which is what the menu shows
