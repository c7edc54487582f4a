"""The dashboard and the alert rules: each asks for what steps tell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import promql_parser
import pytest
import yaml
from project import REPOSITORY

from mlops_provider.telemetry import FAILURES, NAMES

FOLDER = REPOSITORY / "include/monitoring"


def names_in_prometheus() -> set[str]:
    """As OpenTelemetry's collector translates them: dots to underscores, and a suffix for counters."""
    found = {name: f"airflow_{name.replace('.', '_')}" for name in NAMES}
    return {name + ("_total" if told == FAILURES else "") for told, name in found.items()}


def questions() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((FOLDER / "grafana_dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"].replace("$pipeline", "flights")
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


@pytest.mark.parametrize(("name", "question"), questions())
def test_each_question_is_one_of_what_is_told(name: str, question: str) -> None:
    """Broken: a panel stays empty, and an alert never comes, for a name that nobody tells."""
    promql_parser.parse(question)
    asked = set(re.findall(r"\bairflow_\w+", question))
    assert asked
    assert asked <= names_in_prometheus(), name


def test_tags_in_texts_are_those_of_the_question() -> None:
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
            grouped = re.search(r"by \(([^)]*)\)", rule["expr"])
            kept = {"pipeline"} if grouped is None else {each.strip() for each in grouped[1].split(",")}
            assert used <= kept, rule["alert"]
