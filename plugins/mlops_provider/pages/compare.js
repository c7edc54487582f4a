// In what two versions of a model differ: data, code, environment, parameters, metrics.

import { ask, Problem, Rows, useLooks, Wide } from "./common.js";

const { createElement: h, Fragment, useState } = globalThis.React;
const { Box, Button, Flex, Text } = globalThis.ChakraUI;

const MOST_ROWS = 50; // of one part: who needs more asks `mlops diff`

function Differences({ model, before, after }) {
  const path = `models/${encodeURIComponent(model)}/diff?before=${before}&after=${after}`;
  const { found, problem } = useLooks((signal) => ask(path, signal), () => true, path);
  if (found === null) return problem ? h(Problem, { said: problem }) : h(Text, { role: "status" }, "Reading both");
  const head = ["what", `version ${before}`, `version ${after}`];
  return found.parts.map(({ name, is_equal: isEqual, said, differences, patch }) => {
    const left = differences.length - MOST_ROWS;
    const rows = differences.slice(0, MOST_ROWS).map((each) => [each.what, each.before, each.after]);
    return h(
      Box,
      { key: name, marginTop: 2 },
      h(Text, { fontWeight: "bold" }, name, isEqual && h(Text, { as: "span", fontWeight: "normal" }, `: equal, ${said}`)),
      rows.length > 0 && h(Rows, { head, rows }),
      left > 0 && h(Text, null, `and ${left} more: mlops diff ${model}/${before} ${model}/${after}`),
      patch && h(Wide, { label: "Files of the recipe" }, h(Box, { as: "pre", fontSize: "xs" }, patch)),
    );
  });
}

/** @param versions the newest first */
export function Compare({ model, versions }) {
  const numbers = versions.map(({ version }) => version);
  const champion = versions.find(({ stage }) => stage === "production")?.version;
  const [before, setBefore] = useState(champion && champion !== numbers[0] ? champion : numbers[1]);
  const [after, setAfter] = useState(numbers[0]);
  const [asked, setAsked] = useState(null);
  const choice = (label, value, set) =>
    h(
      Box,
      {
        as: "select", "aria-label": label, value, borderWidth: "1px", borderRadius: "sm", background: "bg",
        onChange: (event) => set(event.target.value),
      },
      numbers.map((each) => h("option", { key: each }, each)),
    );
  return h(
    Fragment,
    null,
    h(
      Flex,
      { gap: 2, marginTop: 2, alignItems: "center", fontSize: "sm", flexWrap: "wrap" },
      "Version",
      choice("Version before", before, setBefore),
      "beside",
      choice("Version after", after, setAfter),
      h(Button, { size: "xs", variant: "outline", onClick: () => setAsked({ before, after }) }, "Compare"),
    ),
    asked && h(Differences, { key: `${asked.before} ${asked.after}`, model, ...asked }),
  );
}
