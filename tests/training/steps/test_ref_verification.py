"""A step believes no ref: each one is compared with what its step committed, before anything else happens."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from committed_refs import chain

from mlops.contract.refs import DatasetRef, ModelVersionRef, Ref, ReportRef, TrialRef, ValidationRef, ref_from_wire
from mlops.contract.step import STEPS, RunIdentity, StepInput
from mlops.process import ProcessSettings
from mlops.steps.execution import find_committed
from mlops.steps.ref_verification import ChangedRefError
from mlops.store import Store

CHAIN = chain()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> ProcessSettings:
    """Its store has the chain."""
    folder = tmp_path_factory.mktemp("verification")
    store = Store(f"file://{folder}")
    for ref in CHAIN.values():
        store.commit(ref)
    return ProcessSettings(home=folder, store=store.uri, tracking_uri="", result_path=folder / "result.json", rank=0)


def document(step: str, ref: Ref, action: str = "promote", **baselines: Ref) -> StepInput:
    run = RunIdentity(
        pipeline="toy", run_key="key", interval_start="2013-02-07T05:00:00+00:00",
        interval_end="2013-02-08T05:00:00+00:00", timezone="UTC", dag_id="toy", task_id=step, run_id="r", try_number=1,
    )  # fmt: skip
    return StepInput(step=step, run=run, config={"action": action}, ref=ref, baselines=baselines)


def taking(kind: type[Ref]) -> str:
    """A step that consumes a ref of that class."""
    return next(name for name, step in STEPS.items() if kind in step.consumes)


CONSUMED = [kind for kind in CHAIN if kind is not TrialRef]


@pytest.mark.parametrize("kind", CONSUMED, ids=lambda kind: kind.kind)
def test_what_was_committed_is_accepted_after_a_way_as_json(deployment: ProcessSettings, kind: type[Ref]) -> None:
    ref = ref_from_wire(json.loads(json.dumps(CHAIN[kind].to_wire())))
    assert find_committed(document(taking(kind), ref), deployment) is None


def edits() -> Any:
    """Each field of each ref in the chain of a model version, with another value."""
    newest = CHAIN[ModelVersionRef]
    for depth, link in enumerate(newest.lineage()):
        for name in [spec.name for spec in dataclasses.fields(link) if spec.name not in ("parent", "place")]:
            yield pytest.param(depth, name, id=f"{link.kind}.{name}")


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, dict):
        return {**value, "forged": 0.9999}
    return f"{value}0" if isinstance(value, str) else value + 1


def edited(wire: dict[str, Any], depth: int, name: str) -> dict[str, Any]:
    if depth:
        return {**wire, "parent": edited(wire["parent"], depth - 1, name)}
    if name == "artifacts":
        return {**wire, "artifacts": {"report": {"key": "mine", "sha256": "0" * 64, "num_bytes": 1}}}
    return {**wire, name: other(wire[name])}


@pytest.mark.parametrize(("depth", "name"), list(edits()))
def test_an_edited_xcom_fails_with_the_field_that_differs(deployment: ProcessSettings, depth: int, name: str) -> None:
    """Broken: who may edit an XCom could have a model registered with metrics and a reason of their own."""
    newest = CHAIN[ModelVersionRef]
    link = list(newest.lineage())[depth]
    forged = ref_from_wire(edited(newest.to_wire(), depth, name))
    with pytest.raises(ChangedRefError, match=rf"{name}\S* of the {type(link).__name__} is .*, and was committed as"):
        find_committed(document("promote", forged), deployment)
    assert not ChangedRefError.retryable


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda ref: dataclasses.replace(ref, place="nowhere"), id="a place without a commit"),
        pytest.param(lambda ref: dataclasses.replace(ref, place=""), id="no place"),
        pytest.param(lambda ref: dataclasses.replace(ref, place="r"), id="the place of another kind"),
        pytest.param(lambda ref: dataclasses.replace(ref, place="../r"), id="a place outside of the store"),
    ],
)
def test_a_ref_with_another_place_is_refused(deployment: ProcessSettings, forge: Callable[[Ref], Ref]) -> None:
    with pytest.raises(Exception, match="no step committed one there|kind of the|cannot read"):
        find_committed(document("promote", forge(CHAIN[ModelVersionRef])), deployment)


def test_the_message_shows_both_values(deployment: ProcessSettings) -> None:
    forged = ref_from_wire({**CHAIN[ReportRef].to_wire(), "metrics": {"ndcg@10": 0.9999}})
    with pytest.raises(ChangedRefError) as failure:
        find_committed(document("register", forged), deployment)
    assert str(failure.value) == (
        "the input of register was changed after its step had returned it: metrics.ndcg@10 of the ReportRef is "
        "0.9999, and was committed as 0.9172 (r/ref.json). Clear the task that returned it, so that it returns what "
        "it committed"
    )


def test_a_baseline_is_compared_too(deployment: ProcessSettings) -> None:
    """Broken: a tag in MLflow could name the data that drift is measured against."""
    forged = ref_from_wire({**CHAIN[ValidationRef].to_wire(), "num_checks": 0})
    with pytest.raises(ChangedRefError, match=r"the baseline 'champion' of validate .* num_checks of the Validation"):
        find_committed(document("validate", CHAIN[DatasetRef], champion=forged), deployment)


def test_only_a_rollback_may_name_a_version_without_a_place(deployment: ProcessSettings) -> None:
    champion = dataclasses.replace(CHAIN[ModelVersionRef], place="")
    assert find_committed(document("promote", champion, "rollback"), deployment) is None
    for action in ("promote", "approve", "canary", "archive"):
        with pytest.raises(ChangedRefError, match="no step committed one there"):
            find_committed(document("promote", champion, action), deployment)
    forged = ref_from_wire(edited(champion.to_wire(), 1, "reason"))
    with pytest.raises(ChangedRefError, match="reason of the ReportRef"):
        find_committed(document("promote", forged, "rollback"), deployment)
