"""The verdict of a night. ``tests/end_to_end/test_pipeline.py`` has Airflow write it of runs that it ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from airflow.models.base import Base
from airflow.models.xcom import XComModel
from airflow_rows import BUNDLE, add_dag, add_rendered, add_run, add_task, add_xcom, database, put
from odd_values import with_odd_values
from sqlalchemy.orm import Session

from mlops.contract.refs import DatasetRef, FeaturesRef, ModelVersionRef, ValidationRef
from mlops.contract.rest import MOST_NOTE_CHARACTERS, Verdict
from mlops.contract.step import Failure
from mlops_provider import operator_keys
from mlops_provider.experiments.operator import ExperimentOperator
from mlops_provider.operators.approve import ApproveOperator
from mlops_provider.operators.canary import CanaryOperator
from mlops_provider.operators.evaluate import EvaluateOperator
from mlops_provider.operators.promote import PromoteOperator
from mlops_provider.operators.rollback import RollbackOperator
from mlops_provider.operators.train import TrainOperator
from mlops_provider.operators.tune import TrialOperator, TuneOperator
from mlops_provider.operators.validate import ValidateOperator
from mlops_provider.verdicts.actions import action, production
from mlops_provider.verdicts.changes import Facts, changes
from mlops_provider.verdicts.document import note_of, verdict_of
from mlops_provider.verdicts.happened import Ended, happened, is_of_tasks
from mlops_provider.verdicts.reading import night_of

MIDNIGHT = datetime(2026, 1, 11, tzinfo=UTC)
NIGHT = timedelta(days=1)
MODEL = {"include/x/model.py": "1", "include/x/features.py": "2"}


def told(message: str, kind: str = "StepFailedError", *, retryable: bool = False) -> Failure:
    return Failure(kind, message, retryable, {})


def test_operators_are_known_by_their_names() -> None:
    names = {name for name in vars(operator_keys).values() if str(name).endswith("Operator")}
    known = (
        TrainOperator, TrialOperator, TuneOperator, ApproveOperator, EvaluateOperator, ValidateOperator, CanaryOperator,
        PromoteOperator, RollbackOperator, ExperimentOperator,
    )  # fmt: skip
    assert names == {each.__name__ for each in known}


@pytest.mark.parametrize(
    ("state", "tasks", "cause", "note"),
    [
        pytest.param("success", [], "success", "", id="nothing of ours"),
        pytest.param("success", [Ended(task_id="ingest", state="success")], "", "", id="a snapshot is no news"),
        pytest.param(
            "success",
            [Ended(task_id="evaluate", state="success"), Ended(task_id="promote", state="success", news="Version 3.")],
            "",
            "Version 3.",
            id="promoted",
        ),
        pytest.param(
            "success",
            [
                Ended(task_id="register", state="skipped", news="not registered: no better"),
                Ended(task_id="promote", state="skipped"),
            ],
            "",
            "Nothing goes into production: not registered: no better",
            id="no better",
        ),
        pytest.param(
            "failed",
            [
                Ended(task_id="validate", state="failed", failure=told("40 rows")),
                Ended(task_id="train", state="upstream_failed"),
            ],
            "task_failure",
            "validate failed: 40 rows",
            id="failed",
        ),
        pytest.param(
            "failed",
            [Ended(task_id="train", state="failed")],
            "task_failure",
            "train failed: its log says why",
            id="lost",
        ),
        pytest.param(
            "failed",
            [
                Ended(task_id="train", state="failed", map_index=1, failure=told("NaN")),
                Ended(task_id="promote", state="success", news="Version 3."),
                Ended(task_id="clean", state="failed"),
            ],
            "task_failure",
            "train[1] failed: NaN\nclean failed: its log says why",
            id="of several, and not what another branch has brought about",
        ),
        pytest.param(
            "success",
            [
                Ended(task_id="check", state="failed", failure=told("may fail")),
                Ended(task_id="promote", state="success", news="Version 3."),
            ],
            "success",
            "Version 3.",
            id="a failure that the DAG bears",
        ),
        pytest.param(
            "failed",
            [
                Ended(task_id="trial", state="failed", failure=told("NaN")),
                Ended(task_id="train", state="failed"),
                Ended(task_id="register", state="skipped", news="not registered: no better"),
            ],
            "timed_out",
            "It took longer than its DAG allows (dagrun_timeout).\ntrial failed: NaN",
            id="too long",
        ),
        pytest.param(
            "failed",
            [Ended(task_id="approve", state="failed")],
            "Dag Run's state was manually set to `failed`.",
            "It failed: Dag Run's state was manually set to `failed`.",
            id="ended by hand, and its tasks with it",
        ),
        pytest.param("failed", [], "new_word", "It failed: new_word", id="for a cause of a later Airflow"),
    ],
)
def test_it_says_what_came_of_the_run(state: str, tasks: list[Ended], cause: str, note: str) -> None:
    assert happened(state, tasks, cause) == note
    assert is_of_tasks(note) == (state == "success" or cause == "task_failure")


@pytest.mark.parametrize(
    ("kind", "operator_name", "retryable", "said"),
    [
        ("StepLostError", "TrainOperator", True, "look in the log of work"),
        ("StepOutageError", "TrainOperator", True, "mlops doctor"),
        ("BadDataError", "ValidateOperator", False, "read the report of work"),
        ("StoreError", "ValidateOperator", True, "or see that it has passed, then clear work and what follows it"),
        ("NonFiniteLossError", "TrainOperator", False, "look at the curves"),
        ("BadConfigError", "TrainOperator", False, "change what work names, then clear work and what follows it"),
        ("SourceError", "IngestOperator", True, "correct the code or the settings if it is theirs"),
    ],
)
def test_the_action_is_by_why_the_first_task_failed(kind: str, operator_name: str, retryable: bool, said: str) -> None:
    failed = Ended(task_id="work", state="failed", operator=operator_name, failure=told("x", kind, retryable=retryable))
    later = Ended(task_id="later", state="failed", failure=told("y"))
    assert said in action([Ended(task_id="before", state="success"), failed, later])


def test_the_action_is_not_of_a_trial_that_may_fail() -> None:
    """Broken: a search bears that some of its trials fail, and people would be sent to one of them."""
    trial = Ended(task_id="tune_trial", map_index=2, state="failed", operator="TrialOperator", failure=told("NaN"))
    assert "then clear tune_trial[2]" in action([trial])
    assert "then clear evaluate" in action([trial, Ended(task_id="evaluate", state="failed", failure=told("x"))])


def test_the_action_is_of_the_trials_where_all_of_them_fail() -> None:
    """Broken: who clears the search alone has it fail at once, for its trials stay as they are."""
    failed = [
        Ended(task_id="tune_trial", map_index=number, state="failed", operator="TrialOperator", failure=told("NaN"))
        for number in range(3)
    ]
    tune = Ended(task_id="tune", state="failed", operator="TuneOperator", failure=told("none came to its end"))
    assert "then clear tune_trial and what follows it" in action([*failed, tune])
    assert "then clear tune and what follows it" in action([tune])


def test_the_action_where_no_task_says_why() -> None:
    said = action([Ended(task_id="report", state="failed")])
    assert said == "read the log of report, then clear report and what follows it."
    assert "see what ended it" in action([Ended(task_id="train", state="failed")], is_of_tasks=False)
    assert "see what ended it" in action([])


def _move(name: str, state: str) -> Ended:
    return Ended(task_id=name.lower(), state=state, operator=f"{name}Operator")


@pytest.mark.parametrize(
    ("state", "moves", "said"),
    [
        ("failed", [], "It changed nothing in production; the last version that a night put there is 3."),
        ("failed", [_move("Promote", "upstream_failed")], "It changed nothing in production"),
        ("failed", [_move("Promote", "failed")], "see what is in production"),
        ("failed", [_move("Canary", "failed"), _move("Promote", "upstream_failed")], "see what is in production"),
        ("failed", [_move("Rollback", "failed")], "see what is in production"),
        ("failed", [_move("Canary", "success")], "Its version is a canary and not promoted"),
        ("failed", [_move("Promote", "success")], "It failed after it had put a version into production."),
        ("success", [_move("Promote", "success")], ""),
        ("success", [_move("Promote", "skipped")], "It changed nothing in production"),
    ],
)
def test_it_says_whether_production_has_changed(state: str, moves: list[Ended], said: str) -> None:
    """Broken: whoever is on call would sleep on while half a release answers."""
    found = production(state, moves, "3")
    assert said in found
    assert bool(found) == bool(said)


def test_a_move_that_was_cut_off_may_be_half_done() -> None:
    """Airflow skips what runs where a run takes too long; what skips itself says why."""
    cut_off = Ended(task_id="promote", state="skipped", operator="PromoteOperator")
    assert "see what is in production" in production("failed", [cut_off], "")
    for whole in (replace(cut_off, has_begun=False), replace(cut_off, news="version 2 was taken back since")):
        assert production("failed", [whole], "").endswith("no night has put a version there yet.")
    judged = _move("Canary", "failed")
    archived = replace(judged, failure=told("version 3 is archived", "CanaryFailedError"))
    assert production("failed", [archived], "").startswith("It changed nothing in production")
    assert "clear" not in action([archived])


def test_a_setting_that_was_changed_is_named() -> None:
    before = Facts(
        moments=[MIDNIGHT, MIDNIGHT + NIGHT],
        settings={
            "ingest": {"path": "in/2026-01-11/20260111.csv", "until": "in/2026-01-12T00.csv", "first": "2026-01-11"},
            "train": {"epochs": 3, "schedule": {"kind": "cosine"}, "gone": 1},
            "tune": {"trials": 9},
        },
    )
    now = Facts(
        moments=[MIDNIGHT + NIGHT, MIDNIGHT + 2 * NIGHT],
        given={"epochs": 50},
        settings={
            "ingest": {"path": "in/2026-01-12/20260112.csv", "until": "in/2026-01-13T00.csv", "first": "2026-01-11"},
            "train": {"epochs": 5, "schedule": {"kind": "constant"}},
            "evaluate": {"metric": "rmse"},
        },
    )
    assert changes(before, now) == [
        "triggered with epochs not set -> 50",
        "train.epochs 3 -> 5",
        "train.schedule.kind cosine -> constant",
        "train.gone 1 -> not set",
    ], "the night's own day, and what only one of them has come to, is no change"
    many = replace(before, settings={"train": {str(number): "x" * 100 for number in range(9)}})
    said = changes(replace(many, settings={"train": {}}), many)
    assert said[-1] == "3 more settings"
    assert max(map(len, said)) < 100


def test_code_and_data_that_were_changed_are_named(version_ref: ModelVersionRef) -> None:
    snapshot, validation = version_ref.ancestor(DatasetRef), version_ref.ancestor(ValidationRef)
    features = version_ref.ancestor(FeaturesRef)
    before = Facts(
        code={"features": MODEL | {"include/x/old.py": "3"}, "train": MODEL, "evaluate": {}, "tune": {"gone.py": "4"}},
        refs={"ingest": snapshot, "validate": validation, "features": features},
        bundle="1" * 40,
    )
    assert changes(before, before) == []
    now = Facts(
        code={
            "features": MODEL | {"include/x/model.py": "9"},
            "train": MODEL | {"include/x/model.py": "9"},
            "evaluate": {f"rules/{number}.py": "5" for number in range(6)},
            "predict": {"include/y/model.py": "6"},
        },
        refs={
            "ingest": replace(snapshot, num_rows=snapshot.num_rows // 2, schema_hash="other"),
            "validate": replace(validation, schema_sha256="other"),
            "features": replace(features, num_features=features.num_features + 1),
        },
        bundle="2" * 40,
    )
    assert changes(before, now) == [
        "changed include/x/model.py, include/x/old.py (gone), "
        "rules/0.py (new), rules/1.py (new), rules/2.py (new), and 3 more",
        "DAG bundle 111111111111 -> 222222222222",
        "other columns or types in the snapshot of ingest",
        f"rows of ingest {snapshot.num_rows} -> {snapshot.num_rows // 2}",
        "another schema for validate",
        f"features {features.num_features} -> {features.num_features + 1}",
    ]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with database(f"sqlite:///{tmp_path}/airflow.db") as session:
        add_dag(session, "flights")
        yield session


def _night(session: Session, day: int, state: str, failure: Mapping[str, Any] | None = None, **fields: Any) -> int:
    """A night of one task that trains and one that promotes; it has failed with what is given."""
    run_id, at = f"night_{day}", MIDNIGHT + day * NIGHT
    run = add_run(session, "flights", run_id, state, fields.pop("asked_at", at), logical_date=at, **fields)
    trained = "success" if failure is None else "failed"
    add_task(session, "flights", run_id, "train", trained, start_date=at, end_date=at)
    promoted = "success" if failure is None and state == "success" else "upstream_failed"
    add_task(session, "flights", run_id, "promote", promoted, operator="PromoteOperator", start_date=at, end_date=at)
    if failure is not None:
        add_xcom(session, run, run_id, "train", "failure", failure, at)
    return run


NAN = {"type": "NonFiniteLossError", "message": "the loss is not finite", "retryable": False, "details": {}}


def _verdict(
    session: Session, day: int, state: str = "failed", cause: str = "task_failure", noted: str = "", cancelled: str = ""
) -> Verdict:
    night = night_of(session, "flights", f"night_{day}")
    assert night is not None
    return verdict_of(session, night, state, cause, noted, cancelled)


def test_a_night_that_failed_is_held_against_the_last_good_one(session: Session, version_ref: ModelVersionRef) -> None:
    good = _night(session, 0, "success")
    add_xcom(session, good, "night_0", "promote", "return_value", version_ref.to_wire(), MIDNIGHT)
    add_rendered(session, "night_0", "train", {"settings": {"epochs": 3}})
    add_xcom(session, good, "night_0", "train", "code", MODEL, MIDNIGHT)
    for day in (1, 2):
        failed = _night(session, day, "failed", NAN)
        add_xcom(session, failed, f"night_{day}", "train", "code", MODEL | {"include/x/model.py": "9"}, MIDNIGHT)
        add_rendered(session, f"night_{day}", "train", {"settings": {"epochs": 5}})
    _night(session, 3, "success")
    found = _verdict(session, 2)
    assert (found.run, found.standing) == ("flights@night_2", "failed")
    assert found.happened == "train failed: the loss is not finite"
    assert (found.failed_nights, found.failed_since) == (2, MIDNIGHT + NIGHT)
    assert found.last_good is not None
    assert found.last_good.run == "flights@night_0"
    assert found.changes == ["train.epochs 3 -> 5", "changed include/x/model.py"]
    assert note_of(found) == (
        "train failed: the loss is not finite\n\n"
        "2 nights in a row failed, since 2026-01-12; the last good one is 2026-01-11.\n"
        "It changed nothing in production; the last version that a night put there is version "
        f"{version_ref.version} of {version_ref.name}, of 2026-01-11.\n"
        "Next: look at the curves before it, change the learning rate (in tune.space, where it is searched for) or the "
        "data, then clear train and what follows it.\n"
        "Since the last good night: train.epochs 3 -> 5; changed include/x/model.py."
    )
    assert _verdict(session, 1).failed_nights == 1


def test_nights_come_in_the_order_of_their_days(session: Session) -> None:
    """Broken: a night that is caught up with would follow one that is of a later day."""
    _night(session, 3, "success")
    _night(session, 4, "failed", NAN)
    for day in (0, 1):
        _night(session, day, "failed", NAN, asked_at=MIDNIGHT + (day + 7) * NIGHT)
    assert (_verdict(session, 1).failed_nights, _verdict(session, 1).last_good) == (2, None)
    late = _verdict(session, 4)
    assert late.last_good is not None
    assert (late.failed_nights, late.last_good.run) == (1, "flights@night_3")


def test_a_change_of_the_dag_is_said_though_no_step_of_it_has_run(session: Session) -> None:
    """Broken: who has changed the training would read that all is alike where validation fails."""
    _night(session, 0, "success")
    _night(session, 1, "failed", NAN)
    tasks = Base.metadata.tables["task_instance"]
    for day in (0, 1):
        version = uuid4()
        row = {"id": version, "version_number": day + 1, "dag_id": "flights", "bundle_name": BUNDLE}
        put(session, "dag_version", row | {"created_at": MIDNIGHT, "last_updated": MIDNIGHT})
        session.execute(tasks.update().where(tasks.c.run_id == f"night_{day}").values(dag_version_id=version))
    assert _verdict(session, 1).changes == ["DAG version 1 -> 2"]


def test_a_pipeline_that_has_never_been_good(session: Session) -> None:
    _night(session, 0, "failed", NAN)
    found = _verdict(session, 0)
    assert (found.last_good, found.changes, found.failed_nights) == (None, None, 1)
    assert found.sentences[:2] == [
        "No earlier night was good.",
        "It changed nothing in production; no night has put a version there yet.",
    ]


def test_a_good_night_needs_nobody(session: Session, version_ref: ModelVersionRef) -> None:
    run = _night(session, 0, "success")
    add_xcom(session, run, "night_0", "promote", "news", {"said": "Version 3 is in production."}, MIDNIGHT)
    found = _verdict(session, 0, "success", "")
    assert (found.standing, note_of(found)) == ("promoted", "Version 3 is in production.")
    add_xcom(session, run, "night_0", "promote", "return_value", version_ref.to_wire(), MIDNIGHT)
    run = add_run(session, "flights", "night_1", "success", MIDNIGHT + NIGHT)
    add_task(session, "flights", "night_1", "register", "skipped", start_date=MIDNIGHT, end_date=MIDNIGHT)
    add_task(session, "flights", "night_1", "promote", "skipped", operator="PromoteOperator")
    add_xcom(session, run, "night_1", "register", "news", {"said": "not registered: no better"}, MIDNIGHT)
    assert note_of(_verdict(session, 1, "success", "")) == (
        "Nothing goes into production: not registered: no better\n\n"
        "It changed nothing in production; the last version that a night put there is version "
        f"{version_ref.version} of {version_ref.name}, of 2026-01-11."
    )


def test_why_a_run_ended_is_kept_in_its_note(session: Session) -> None:
    """Airflow says it once. What a step said at length is whole again, for a note cuts it off."""
    _night(session, 0, "failed", NAN)
    at_once = _verdict(session, 0, cause="timed_out")
    assert at_once.happened.startswith("It took longer than its DAG allows")
    assert "see what ended it" in at_once.action
    assert _verdict(session, 0, cause="", noted=note_of(at_once)) == at_once
    long = "a column is wrong\n\n \n" * 200
    _night(session, 1, "failed", NAN | {"message": long})
    found = _verdict(session, 1)
    note = note_of(found)
    assert len(note) <= MOST_NOTE_CHARACTERS
    assert found.action in note, "however much there is to say of what happened"
    assert _verdict(session, 1, cause="", noted=note) == found
    assert found.happened.count("a column is wrong") == 200


def test_a_long_note_fits_into_the_database() -> None:
    """Broken: PostgreSQL would refuse it, and with it the transaction in which the scheduler ends runs."""
    said = ["x" * 90] * 30
    note = note_of(
        Verdict(
            run="a@b",
            standing="failed",
            happened="ö" * 5000,
            last_good={"run": "a@c", "due_at": MIDNIGHT},
            changes=said,
        )
    )
    assert len(note) == MOST_NOTE_CHARACTERS
    assert note.endswith(" ...")


def test_a_rollback_since_is_said(session: Session, version_ref: ModelVersionRef) -> None:
    """Broken: whoever asks whether production is safe would be told of a version that was taken back."""
    good = _night(session, 0, "success")
    add_xcom(session, good, "night_0", "promote", "return_value", version_ref.to_wire(), MIDNIGHT)
    _night(session, 1, "failed", NAN)
    add_dag(session, "rollback", tag="operations")
    for number, model in enumerate((version_ref.name, "anothers")):
        run_id, at = f"back_{number}", MIDNIGHT + (number + 1) * NIGHT
        run = add_run(session, "rollback", run_id, "success", at)
        fields = {"operator": "RollbackOperator", "start_date": at, "end_date": at}
        add_task(session, "rollback", run_id, "rollback", "success", **fields)
        back = replace(version_ref, name=model, version="0")
        add_xcom(session, run, run_id, "rollback", "return_value", back.to_wire(), at, "rollback")
    assert _verdict(session, 1).production.endswith("of 2026-01-11, and version 0 was put back since.")


@pytest.mark.parametrize("kind", ["ExperimentOperator", "RollbackOperator"])
def test_what_was_asked_for_by_hand_is_no_night_after_others(session: Session, kind: str) -> None:
    for day, state in enumerate(("success", "failed")):
        run = add_run(session, "flights", f"night_{day}", state, MIDNIGHT + day * NIGHT, conf={"model": day})
        add_task(session, "flights", f"night_{day}", "it", state, operator=kind, start_date=MIDNIGHT, end_date=MIDNIGHT)
        add_xcom(session, run, f"night_{day}", "it", "failure", NAN, MIDNIGHT)
    found = _verdict(session, 1)
    assert (found.failed_nights, found.last_good, found.changes, found.action) == (0, None, None, "")
    assert note_of(found).startswith("it failed: the loss is not finite")
    assert ("see what is in production" in note_of(found)) == (kind == "RollbackOperator")


BY_ANA = "It was cancelled by ana."


def test_a_run_that_was_cancelled_asks_for_nothing(session: Session) -> None:
    _night(session, 0, "failed", NAN | {"type": "StepLostError"})
    found = _verdict(session, 0, cause="", cancelled=BY_ANA)
    assert (found.happened, found.action) == (BY_ANA, "")


def test_a_run_that_failed_after_it_was_cleared_says_why(session: Session) -> None:
    """Broken: who has cancelled it before would hide why it failed since, and what to do about it."""
    _night(session, 0, "failed", NAN)
    assert _verdict(session, 0, cause="", cancelled=BY_ANA) == _verdict(session, 0, cause="")
    # Of a search that is cancelled a trial may have failed before.
    late = {"start_date": MIDNIGHT + NIGHT, "end_date": MIDNIGHT + NIGHT}
    add_task(session, "flights", "night_0", "tune", "failed", operator="TuneOperator", **late)
    assert _verdict(session, 0, cause="", cancelled=BY_ANA).happened == BY_ANA


def test_what_skipped_itself_without_a_word_is_said(session: Session) -> None:
    add_run(session, "flights", "night_0", "success", MIDNIGHT)
    add_task(session, "flights", "night_0", "promote", "skipped", operator="PromoteOperator")
    found = _verdict(session, 0, "success")
    assert found.happened == "Nothing was promoted."
    assert _verdict(session, 0, "success", noted=note_of(found)) == found


def test_what_was_said_before_a_clear_is_not_told(session: Session) -> None:
    _night(session, 0, "failed")
    add_task(session, "flights", "night_0", "clean", "failed", start_date=MIDNIGHT + NIGHT, end_date=MIDNIGHT + NIGHT)
    number = night_of(session, "flights", "night_0")
    assert number is not None
    add_xcom(session, 1, "night_0", "clean", "failure", NAN, MIDNIGHT)
    assert _verdict(session, 0).happened == "clean failed: its log says why"


def test_no_value_at_any_place_of_a_ref_is_an_error(session: Session, version_ref: ModelVersionRef) -> None:
    """Broken: whoever may edit XComs could have no run of the pipeline end with a note."""
    sound = version_ref.ancestor(FeaturesRef).to_wire()
    good, run = _night(session, 0, "success"), _night(session, 1, "failed", NAN)
    for day in (0, 1):
        add_task(session, "flights", f"night_{day}", "features", "success")
    add_xcom(session, good, "night_0", "features", "return_value", sound, MIDNIGHT)
    add_xcom(session, run, "night_1", "features", "return_value", sound, MIDNIGHT)
    returned = Base.metadata.tables["xcom"]
    ours = returned.update().where(returned.c.run_id == "night_1", returned.c.key == "return_value")
    for wire in with_odd_values(sound):
        session.execute(ours.values(value=XComModel.serialize_value(wire)))
        assert _verdict(session, 1).standing == "failed"
