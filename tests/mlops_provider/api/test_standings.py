"""How a pipeline stands by its run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mlops.contract.rest import PipelineTonight, Question, Standing
from mlops_provider.api.standings import Shown, Work, standing_of, urgency

BEGUN = datetime(2026, 1, 11, 0, 0, 3, tzinfo=UTC)
ENDED = BEGUN + timedelta(hours=1)


def shown(**fields: Any) -> Shown:
    ran = {"run_id": "r+1", "begun_at": BEGUN, "ended_at": ENDED} if "state" in fields else {}
    return Shown(**{"dag_id": "flights", "is_paused": False, "next_run": None, **ran, **fields})


def work(task_id: str, state: str, operator: str = "TrainOperator", number: int = 1, **asked: Any) -> Work:
    fields = {"map_index": -1, "subject": None, "approvers": (), "asked_at": None} | asked
    return Work(task_id=task_id, operator=operator, state=state, try_number=number, **fields)


def question(subject: str = "Put 3 in?", **fields: Any) -> Work:
    return work("approve", "awaiting_input", subject=subject, **{"approvers": ["vera"], "asked_at": ENDED, **fields})


@pytest.mark.parametrize(
    ("found", "standing", "said", "since"),
    [
        (shown(), "idle", "It has not run yet", None),
        (shown(is_paused=True), "idle", "It is paused, and has not run yet", None),
        (shown(broken="flights.pipeline.yaml:3:1: no", state="success"), "broken", "flights.pipeline.yaml:3:1", None),
        (shown(state="failed", note="validate failed: 40 rows"), "failed", "validate failed: 40 rows", ENDED),
        (shown(state="failed"), "failed", "It failed: mlops why flights 'r+1'", ENDED),
        (
            shown(state="failed", note="looking into it", is_noted=True),
            "failed",
            "looking into it\n(noted by somebody; mlops why flights 'r+1')",
            ENDED,
        ),
        (
            shown(state="success", note="Version 3", tasks=[work("promote", "success", "PromoteOperator")]),
            "promoted",
            "Version 3",
            ENDED,
        ),
        (
            shown(state="success", note="no better", tasks=[work("promote", "skipped", "PromoteOperator")]),
            "stopped",
            "no better",
            ENDED,
        ),
        (shown(state="success"), "done", "It has ended", ENDED),
        (shown(state="queued"), "running", "It waits to begin", BEGUN),
        (shown(state="queued", is_paused=True), "held", "It is paused", BEGUN),
        (shown(state="running"), "running", "between two tasks", BEGUN),
        (shown(state="running", tasks=[work("train", "deferred")]), "running", "train runs", BEGUN),
        (
            shown(state="running", is_paused=True, tasks=[work("train", "running")]),
            "running",
            "train runs",
            BEGUN,
        ),
        (shown(state="running", is_paused=True, tasks=[work("train", "scheduled")]), "held", "It is paused", BEGUN),
        (
            shown(state="running", tasks=[work("train", "up_for_retry", number=2)]),
            "running",
            "train up for retry at try 2",
            BEGUN,
        ),
        (
            shown(state="running", tasks=[work("fold", "running", map_index=i) for i in range(40)]),
            "running",
            "fold runs (40)",
            BEGUN,
        ),
        (shown(state="running", tasks=[question()]), "asked", "Put 3 in?", ENDED),
        (shown(state="running", is_paused=True, tasks=[question()]), "asked", "Put 3 in?", ENDED),
        (
            shown(state="running", tasks=[question("one?"), question("two?", map_index=1)]),
            "asked",
            "one?\ntwo?",
            ENDED,
        ),
    ],
)
def test_a_pipeline_stands_as_its_run_does(found: Shown, standing: Standing, said: str, since: datetime | None) -> None:
    told = standing_of(found)
    assert (told.standing, told.since) == (standing, since)
    assert told.said.startswith(said)


def test_each_question_leads_to_its_form() -> None:
    tasks = [question(approvers=["vera", "otto"]), question("Which?", map_index=1)]
    told = standing_of(shown(state="running", tasks=tasks))
    form = "/dags/flights/runs/r%2B1/tasks/approve"
    assert told.questions == [
        Question(subject="Put 3 in?", approvers=["vera", "otto"], address=f"{form}/required_actions"),
        Question(subject="Which?", approvers=["vera"], address=f"{form}/mapped/1/required_actions"),
    ]
    assert (told.run, told.airflow) == ("flights@r+1", "/dags/flights/runs/r%2B1")


def test_what_needs_a_person_comes_first_and_of_that_the_newest() -> None:
    def told(name: str, since: datetime, **fields: Any) -> PipelineTonight:
        return standing_of(shown(dag_id=name, ended_at=since, **fields))

    pipelines = [
        told("promoted", ENDED, state="success", tasks=[work("promote", "success", "PromoteOperator")]),
        told("failed_before", BEGUN, state="failed"),
        told("failed_now", ENDED, state="failed"),
        standing_of(shown(dag_id="idle")),
        told("broken", ENDED, broken="no", state="success"),
    ]
    assert [each.name for each in sorted(pipelines, key=urgency)] == [
        "broken", "failed_now", "failed_before", "promoted", "idle",
    ]  # fmt: skip


def test_a_paused_pipeline_has_no_next_run() -> None:
    assert standing_of(shown(is_paused=True, next_run=ENDED)).next_run is None
    assert standing_of(shown(next_run=ENDED)).next_run == ENDED
