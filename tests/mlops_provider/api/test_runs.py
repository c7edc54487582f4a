"""What programs ask for by REST: the whole app, before an Airflow of dictionaries."""

from __future__ import annotations

import asyncio
import gc
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from odd_values import with_odd_values
from pydantic import ValidationError
from rest_world import NAME, NIGHT, World

from mlops.contract.refs import Artifact, CheckpointRef, ModelVersionRef
from mlops.contract.rest import MOST_NOTE_CHARACTERS, NewRollback, with_budget, with_cancellation
from mlops_provider.api.airflow import Airflow
from mlops_provider.api.runs import logs
from mlops_provider.links import report_url
from mlops_provider.operator_keys import FAILURE_KEY


@pytest.mark.parametrize("state", ["running", "success"])
def test_a_night_says_its_verdict_from_the_moment_of_its_evaluation(
    world: World, version_ref: ModelVersionRef, state: str
) -> None:
    """Broken: who had a training judged would have to look for the verdict in a log."""
    page = Artifact(key="pipelines/p/evaluate/k5/report.html", sha256="1" * 64, num_bytes=1)
    report = replace(version_ref.parent, artifacts={"report": page})
    world.state, world.xcoms["evaluate"] = state, report.to_wire()
    status, run = world.ask("GET", f"/runs/{NAME}@{NIGHT}")
    assert (status, run["kind"]) == (200, "night")
    (training,) = run["result"]["trainings"]
    assert (training["passed"], training["reason"]) == (report.passed, report.reason)
    assert (training["champion"], training["metrics"]) == (report.champion, dict(report.metrics))
    assert training["checkpoint"] == report.ancestor(CheckpointRef).place
    assert training["evaluation"] == report.place
    assert training["report"].endswith(report_url(page.key))


def test_a_night_of_many_trials_says_its_verdict_too(world: World, version_ref: ModelVersionRef) -> None:
    """Broken: Airflow gives a hundred tasks at once, and those after a large search would not be there."""
    trials = [{**world.task("tune_trial", "TrialOperator"), "map_index": number} for number in range(250)]
    world.tasks = [*trials, *world.tasks]
    world.xcoms["evaluate"] = version_ref.parent.to_wire()
    status, run = world.ask("GET", f"/runs/{NAME}@{NIGHT}")
    assert (status, len(run["tasks"])) == (200, 252)
    assert run["result"]["trainings"][0]["passed"] == version_ref.parent.passed


@pytest.mark.parametrize("returned", [None, "mine", {"kind": "report"}])
def test_a_night_whose_evaluation_cannot_be_read_has_no_verdict(world: World, returned: Any) -> None:
    """Broken: who edits an XCom could break the answer for everybody."""
    world.xcoms["evaluate"] = returned
    status, run = world.ask("GET", f"/runs/{NAME}@{NIGHT}")
    assert (status, run["result"]) == (200, None)


def test_no_value_at_any_place_of_an_evaluation_is_an_error(world: World, version_ref: ModelVersionRef) -> None:
    page = Artifact(key="pipelines/p/evaluate/k5/report.html", sha256="1" * 64, num_bytes=1)
    sound = replace(version_ref.parent, artifacts={"report": page}).to_wire()
    for wire in with_odd_values(sound):
        if "NaN" not in json.dumps(wire):  # Airflow's API answers in JSON
            world.xcoms["evaluate"] = wire
            status, run = world.ask("GET", f"/runs/{NAME}@{NIGHT}")
            assert status == 200, run


@pytest.mark.parametrize(
    ("state", "tasks", "failure"),
    [
        (
            "failed",
            [("ingest", -1, "success"), ("check_quota", -1, "failed"), ("train", -1, "upstream_failed")],
            f"check_quota failed: its log says why (GET /runs/{NAME}@{NIGHT}/logs?task=check_quota)",
        ),
        (
            "running",
            [("quotas.check", 0, "success"), ("quotas.check", 1, "failed")],
            f"quotas.check[1] failed: its log says why (GET /runs/{NAME}@{NIGHT}/logs?task=quotas.check&map_index=1)",
        ),
        ("failed", [("check_quota", -1, "failed"), ("train", -1, "failed")], "no split is worth its price"),
        ("success", [("notify", -1, "failed")], None),
    ],
    ids=["operator", "mapped", "a step says more", "not needed"],
)
def test_a_task_that_is_no_step_of_ours_and_failed_is_named(
    world: World, state: str, tasks: list[tuple[str, int, str]], failure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the night has failed, and nobody is told why, nor where to look."""
    answer = world.answer

    def with_failure(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith(f"/taskInstances/train/xcomEntries/{FAILURE_KEY}"):
            return httpx.Response(200, json={"value": {"message": "no split is worth its price"}})
        return answer(request)

    monkeypatch.setattr(world, "answer", with_failure)
    world.state = state
    world.tasks = [
        {**world.task(name, "PythonOperator", its_state), "map_index": index} for name, index, its_state in tasks
    ]
    status, run = world.ask("GET", f"/runs/{NAME}@{NIGHT}")
    assert (status, run["failure"]) == (200, failure)


PLACED = {"pipeline": NAME, "as_of": "2013-02-09"}
UNSEEN = "as_of '2013-02-09{}': it has spaces around it, or characters that cannot be seen; write it as 2013-02-09 or "


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"as_of": "2013-02-09\0"}, 422, UNSEEN.format("\\x00")),
        ({"as_of": "2013-02-09 "}, 422, UNSEEN.format(" ")),
        (
            {"settings": {"train.epochs": True, "tune": None}}, 422,
            "settings train.epochs=true: train.epochs must be a number, and neither true nor false, got True",
        ),
        ({"settings": {"train.learning_rate": True, "tune": None}}, 422, "must be a number, and neither"),
        ({"seeds": True}, 422, "seeds must be a valid integer, got True"),
        ({"sample": True}, 422, "sample must be a valid number, got True"),
        ({"seeds": 0}, 422, "seeds must be >= 1, got 0"),
        (
            {"settings": {"pods.train.memory": 64}}, 422,
            "pods.train.memory must be at least 1Mi, and 64 is in bytes: say the unit, such as 4Gi, got 64",
        ),
        ({"settings": {"pods.train.cpu": 0}}, 422, "pods.train.cpu must be more than 0, such as 500m or 2, got 0"),
        ({"dataset": "latest"}, 422, "dataset must be the version of a snapshot or its beginning, six hexadecimal "),
        ({"name": "My run"}, 422, "name must be lower-case letters, digits and underscores, 100 at most, such as more"),
        ({"pipeline": "My run"}, 422, "pipeline must be lower-case letters, digits and underscores, such as flight_r"),
        ({"pipeline": None}, 422, "nothing says which pipeline: give pipeline, its name, or a spec with it"),
        ({"epochs": 1}, 422, "epochs: there is no such field; leave it out"),
        ({"settings": {"train.seed": 1 << 64}}, 422, "settings: 18446744073709551616 is a whole number of"),
        ({"until": "promote"}, 422, "until must be 'ingest', 'validate'"),
    ],
)  # fmt: skip
def test_mistakes_are_said_in_sentences(world: World, change: dict[str, Any], status: int, said: str) -> None:
    """Broken: a value would count as another one; or the answer would be a pattern, or words of Python."""
    found, detail = world.ask("POST", "/runs", PLACED | change)
    assert (found, said in detail) == (status, True), detail
    assert world.triggered == []


def test_null_is_as_if_it_was_not_given(world: World) -> None:
    """Broken: programs that write each field of theirs would be refused for some of them."""
    nothing = dict.fromkeys(("settings", "dataset", "until", "seeds", "sample", "name"))
    for path, body in (
        ("/runs", PLACED | nothing),
        ("/pipelines/runs", {"pipeline_id": NAME, "as_of": "2013-02-09", "config": None, "dataset": None}),
        (
            "/pipelines/runs", {
                "pipeline_id": NAME, "as_of": "2013-02-09",
                "config": dict.fromkeys(("hyperparams", "resources", "model_type", "data_source")),
            },
        ),
        (
            "/training-runs",
            {"model": {"pipeline": NAME, "args": None}, "as_of": "2013-02-09", "hyperparameters": None},
        ),
    ):  # fmt: skip
        status, answer = world.ask("POST", path, body)
        assert status == 201, answer
    assert {str(each["conf"]) for each in world.triggered} == {"{'as_of': '2013-02-09'}"}


SPACE = {"pipeline": NAME, "search_space": {"lr": [0.1, 0.2]}}


@pytest.mark.parametrize(
    ("path", "body"), [("/pipelines/runs", {"pipeline_id": NAME}), ("/training-runs", {"model": {"pipeline": NAME}}),
                       ("/hpo/studies", SPACE)],
)  # fmt: skip
def test_requests_of_other_platforms_say_of_which_data(world: World, path: str, body: dict[str, Any]) -> None:
    """Broken: what is tried so could be of the newest data only."""
    assert world.ask("POST", path, body | {"as_of": "2013-02-09"})[0] == 201
    assert world.triggered[-1]["conf"]["as_of"] == "2013-02-09"
    for given, said in (
        ({"as_of": "soon"}, "as_of soon: Invalid isoformat string: 'soon'; write it as 2013-02-09"),
        ({"dataset": f"{NAME}@abcdef"}, f"dataset abcdef: {NAME} has no such snapshot; none was taken yet"),
        ({"dataset": "digits@abcdef"}, f"dataset.name digits: the model is of {NAME}"),
        ({"dataset": f"{NAME}@abcdef", "as_of": "2013-02-09"}, "dataset abcdef is of an interval of its own; keep one"),
        ({"dataset": f"{NAME}@latest"}, "dataset.version must be the version of a snapshot or its beginning"),
    ):
        status, detail = world.ask("POST", path, body | given)
        assert (status, said in detail) == (422, True), detail
    assert len(world.triggered) == 1


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/pipelines/runs", {"config": {"hyperparams": {"lr": -1}}}, "config.hyperparams.lr=-1: train.learning_rate m"),
        (
            "/pipelines/runs", {"config": {"model_type": "sklearn"}},
            "config.hyperparams.estimator: it is missing, and learner sklearn has to be told",
        ),
        ("/pipelines/runs", {"config": {"model_type": "Torch"}}, "model type Torch: name one of torch, light"),
        (
            "/pipelines/runs", {"config": {"resources": {"memory": 64}}},
            "config.resources.memory=64: pods.train.memory must be at least 1Mi",
        ),
        ("/hpo/studies", SPACE | {"sampler": "TPE"}, "sampler=TPE: tune.sampler must be one of tpe, random, grid ("),
        (
            "/hpo/studies", {"pipeline": NAME, "sampler": "grid", "search_space": {"lr": {"low": 0.1, "high": 0.2}}},
            "search_space={learning_rate: {low: 0.1, high: 0.2}}, sampler=grid",
        ),
        (
            "/studies", {"pipeline": NAME, "space": {"lr": {"low": 1, "high": 2}}},
            "space={lr: {low: 1, high: 2}}: tune.space.lr must be a setting",
        ),
    ],
)  # fmt: skip
def test_what_a_request_says_is_told_by_its_fields(world: World, path: str, body: dict[str, Any], said: str) -> None:
    """Broken: it would be told by the line of a file in which it does not stand."""
    status, detail = world.ask("POST", path, {"pipeline_id": NAME} | body if "config" in body else body)
    assert (status, said in detail) == (422, True), detail
    assert ".yaml:" not in detail


def test_a_body_that_is_no_json_is_told_with_its_place(world: World) -> None:
    json_type = {"Content-Type": "application/json"}
    status, detail = world.ask("POST", "/runs", content='{"pipeline":\n  bad', headers=json_type)
    assert (status, detail) == (422, "body:2:3: it is no JSON: Expecting value")
    wanted = "body: send it with the header Content-Type: application/json, which is {}"
    status, detail = world.ask("POST", "/runs", content="{}")
    assert (status, detail) == (422, wanted.format("missing"))
    status, detail = world.ask("POST", "/runs", content="{}", headers={"Content-Type": "text/plain"})
    assert (status, detail) == (422, wanted.format("text/plain"))
    assert world.ask("POST", "/runs", [1])[1] == "body must be settings by name, as {name: value}, got [1]"


def test_what_is_asked_of_lists_is_refused_in_our_words(world: World) -> None:
    status, detail = world.ask("GET", "/runs", params={"cursor": "zzz"})
    assert (status, detail) == (422, "cursor 'zzz' is none of these runs: begin without one")
    status, detail = world.ask("GET", "/runs", params={"pipeline": "flight_rankin"})
    assert (status, detail) == (
        404, "there is no pipeline 'flight_rankin' that may be tried out: did you mean flight_ranking?"
    )  # fmt: skip
    status, detail = world.ask("GET", "/runs", params={"pipeline": "x", "kind": "night"})
    assert (status, detail) == (
        404, "there is no pipeline 'x' that you may read: there are flight_ranking"
    )  # fmt: skip
    assert world.ask("GET", "/runs", params={"pipeline": NAME})[0] == 200


def test_a_champion_may_be_a_number() -> None:
    assert NewRollback(why="late", champion=7).conf("m") == {"model": "m", "why": "late", "champion": "7"}
    with pytest.raises(ValidationError):
        NewRollback(why="late", champion=True)


@pytest.mark.parametrize(
    ("note", "line"),
    [
        (with_cancellation("x" * MOST_NOTE_CHARACTERS, "ana"), "\ncancelled by ana"),
        (with_budget("x" * MOST_NOTE_CHARACTERS, "3 trials at most", "ana"), "\nsearch: 3 trials at most, by ana"),
    ],
    ids=["cancelled", "another budget"],
)
def test_a_run_with_a_full_note_says_what_was_done_last(note: str, line: str) -> None:
    """Broken: Airflow takes no longer note, and whoever has written one of that length could not end the run."""
    assert len(note) == MOST_NOTE_CHARACTERS
    assert note.endswith(f"x ...{line}")


def test_a_log_is_told_but_for_the_marks_that_fold_it(world: World) -> None:
    """Broken: a line that begins with an address of IPv6 is missing from the log that somebody reads."""
    task = f"/api/v2/dags/{NAME}/dagRuns/{NIGHT}/taskInstances/evaluate"
    lines = ["::group::Log message source details", "a file", "::endgroup::", "::1 refuses", "::ffff:10.0.0.7 too"]
    known = {task: {"try_number": 1}, f"{task}/logs/1": {"content": [{"event": line} for line in lines]}}

    def answer(request: httpx.Request) -> httpx.Response:
        found = known.get(request.url.path)
        return world.answer(request) if found is None else httpx.Response(200, json=found)

    async def ask() -> str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://airflow") as client:
            return await logs(f"{NAME}@{NIGHT}", Airflow(client), task="evaluate", try_number=None)

    assert asyncio.run(ask()) == "a file\n::1 refuses\n::ffff:10.0.0.7 too\n"


def test_a_number_that_no_database_has_is_refused(world: World) -> None:
    """Broken: the answer would be a defect of the server, 500, in place of the mistake."""
    asked = {"task": "evaluate", "map_index": 1 << 31}
    status, detail = world.ask("GET", f"/runs/{NAME}@{NIGHT}/logs", params=asked)
    assert (status, "map_index must be <= 2147483647" in detail) == (422, True), detail


def nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (nested(400), "more than 20 levels of settings within settings"),
        ("\ud800", r"one of the texts has '\ud800', which is half of a character: write a whole one"),
    ],
    ids=["deep", "half a character"],
)
@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/runs", {"settings": {"train.model_args.x": None}}, "settings"),
        ("/pipelines/runs", {"pipeline_id": NAME, "config": {"hyperparams": {"lr": None}}}, "config.hyperparams"),
        ("/training-runs", {"model": {"pipeline": NAME, "args": {"x": None}}}, "model.args"),
        ("/training-runs", {"model": {"pipeline": NAME}, "hyperparameters": {"lr": None}}, "hyperparameters"),
        ("/hpo/studies", {"pipeline": NAME, "search_space": {"lr": {"low": None}}}, "search_space"),
        (
            "/studies",
            {"pipeline": NAME, "space": {"lr": {"low": 0.1}}, "sampler_settings": {"x": None}},
            "sampler_settings",
        ),
    ],
    ids=["runs", "pipelines", "args", "hyperparameters", "search", "studies"],
)
def test_values_that_no_run_can_be_given_are_named(
    world: World, path: str, body: dict[str, Any], place: str, value: Any, said: str
) -> None:
    """Broken: the answer would be a defect of the server, 500, and nobody would know which field to change."""
    text = json.dumps(PLACED | body if path == "/runs" else body).replace("null", json.dumps(value))
    status, detail = world.ask("POST", path, content=text, headers={"Content-Type": "application/json"})
    assert (status, detail) == (422, f"{place}: {said}{'' if said.endswith('one') else ': give what is meant'}")
    assert world.triggered == []


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/hpo/studies", SPACE | {"objective": {"metric": "\ud800"}}, "objective: metric"),
        ("/hpo/studies", SPACE | {"sampler": "\ud800"}, "body: sampler"),
        ("/pipelines/runs", {"pipeline_id": NAME, "config": {"model_type": "\ud800"}}, "config: model_type"),
        ("/runs", PLACED | {"as_of": "\ud800"}, "body: as_of"),
        ("/runs", PLACED | {"settings": {"\ud800": 1}}, "settings: one of the texts"),
    ],
    ids=["metric", "sampler", "learner", "data", "name"],
)
def test_half_of_a_character_is_a_mistake_in_any_field(
    world: World, path: str, body: dict[str, Any], place: str
) -> None:
    """Broken: the answer would be a defect of the server, 500, for a text that was cut within an emoji."""
    json_type = {"Content-Type": "application/json"}
    status, detail = world.ask("POST", path, content=json.dumps(body), headers=json_type)
    assert (status, detail.startswith(f"{place} has '\\ud800', which is half of a character")) == (422, True), detail


def test_a_body_that_is_too_deep_to_be_read_is_a_mistake(world: World) -> None:
    gc.disable()  # it reaches the limit of recursion, where finalizers of other tests' garbage would fail
    try:
        status, said = world.ask("POST", "/runs", content="[" * 9000, headers={"Content-Type": "application/json"})
    finally:
        gc.enable()
    assert (status, said) == (422, "body: it is no JSON in UTF-8, or has a thousand levels within levels")
