// What people do about a version: ask for it in production, or take it back. Whoever may not is told so by the server.

import { address, askAirflow, Problem, runPlace, Said, To } from "./common.js";

const { createElement: h, Fragment, useState } = globalThis.React;
const { Box, Button, Flex, Input, Text } = globalThis.ChakraUI;

/** A key by which the server knows that the same was asked twice. */
const onceKey = () => [...crypto.getRandomValues(new Uint32Array(4))].map((each) => each.toString(16)).join("");

function send(method, path, body, key) {
  const headers = { "Content-Type": "application/json", ...(key ? { "Idempotency-Key": key } : {}) };
  return askAirflow(`mlops/api/v1/${path}`, AbortSignal.timeout(60_000), { method, headers, body: JSON.stringify(body) });
}

/** What is asked for once at a time, and what came of it. */
function useAsked(ask) {
  const [answer, setAnswer] = useState(null);
  const [problem, setProblem] = useState("");
  const [isAsking, setAsking] = useState(false);
  const go = async (...given) => {
    setAsking(true);
    setProblem("");
    try {
      setAnswer(await ask(...given));
    } catch (error) {
      setProblem(error.message);
    } finally {
      setAsking(false);
    }
  };
  return { answer, problem, isAsking, go };
}

/** In place of the version in production the former one, by the DAG `rollback`, with a reason for the audit trail. */
export function RollBack({ model, version }) {
  const [isOpen, setOpen] = useState(false);
  const [why, setWhy] = useState("");
  const [key, setKey] = useState(onceKey);
  const { answer, problem, isAsking, go } = useAsked(() =>
    send("POST", `models/${encodeURIComponent(model)}/rollback`, { why: why.trim(), champion: version }, key),
  );
  if (answer !== null) return h(To, { href: runPlace(answer.id) }, "It is being taken back: see its run");
  if (!isOpen) return h(Button, { size: "xs", variant: "outline", onClick: () => setOpen(true) }, "Roll back");
  const submit = (event) => {
    event.preventDefault();
    go();
  };
  return h(
    "form",
    { onSubmit: submit },
    h(Text, { fontSize: "sm" }, `The former champion of ${model} goes into production again, and version ${version} is archived.`),
    h(
      Flex,
      { gap: 2, marginTop: 1, flexWrap: "wrap" },
      h(Input, {
        "aria-label": `Why version ${version} is taken back`, placeholder: "why, for the audit trail", size: "xs",
        maxWidth: "16rem", value: why,
        onChange: (event) => {
          setWhy(event.target.value);
          setKey(onceKey()); // another reason is another request
        },
      }),
      h(Button, { size: "xs", type: "submit", colorPalette: "red", disabled: isAsking || why.trim() === "" }, "Roll back"),
      h(Button, { size: "xs", variant: "outline", onClick: () => setOpen(false) }, "Leave it"),
    ),
    h(Problem, { said: problem }),
  );
}

/** Leads to the form in which its approvers decide. */
export function AskProduction({ model, version }) {
  const path = `models/${encodeURIComponent(model)}/versions/${encodeURIComponent(version)}/stage`;
  const { answer, problem, isAsking, go } = useAsked(async () => {
    const found = await send("PUT", path, { stage: "production" });
    if (found.question) globalThis.location.assign(address(found.question));
    return found;
  });
  return h(
    Fragment,
    null,
    answer === null && h(Button, { size: "xs", variant: "outline", disabled: isAsking, onClick: go }, "Promote"),
    h(Problem, { said: problem }),
    answer !== null &&
      h(
        Box,
        null,
        h(Said, { fontSize: "sm" }, answer.is_done ? "It is in production." : `It waits for ${answer.waits_for}`),
        answer.airflow && h(To, { href: address(answer.airflow) }, "Its run"),
      ),
  );
}
