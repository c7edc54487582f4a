"""What operators that move versions take from others, and what they answer for: XComs and the store can be written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskAwaitingInput
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, HITLDetailRequestResult
from signed_decisions import decision

from mlops.contract.refs import Artifact, CheckpointRef, ModelVersionRef
from mlops.contract.sections.release import Approval
from mlops.contract.step import Failure
from mlops.signing.keys import load_key, make_key
from mlops.signing.packages import PACKAGE, PackageSeal, package_key
from mlops.signing.seals import ENTRY, Seal, entry_key, seal_key
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.launchers.base import Outcome
from mlops_provider.operators import register as register_module
from mlops_provider.operators import transition
from mlops_provider.operators.approve import ASKED_AT, ApproveOperator
from mlops_provider.operators.canary import CanaryOperator
from mlops_provider.operators.promote import PromoteOperator
from mlops_provider.operators.question import Asked as AskedApproval
from mlops_provider.operators.question import question_about
from mlops_provider.operators.register import RegisterOperator
from mlops_provider.operators.rollback import RollbackOperator
from mlops_provider.operators.runs import Asked
from mlops_provider.operators.transition import TransitionOperator

NIGHT = datetime(2024, 1, 8, tzinfo=UTC)
CANARY = {"minutes": 30, "source": {"kind": "http", "url": "http://127.0.0.1:9"}, "passes": ["errors < 1"]}


@pytest.fixture
def operators() -> dict[str, TransitionOperator]:
    """Those of pipeline ``p``, whose model is ``p``."""
    with DAG(dag_id="p", schedule=None, start_date=datetime(2024, 1, 1)):
        register = RegisterOperator(task_id="register", report="{{ x }}", registered_model="p")
        approve = ApproveOperator(task_id="approve", version=register.output, approvers=["vera", "otto"], minimum=2)
        canary = CanaryOperator(task_id="canary", version=approve.output, **CANARY)
        promote = PromoteOperator(task_id="promote", version=canary.output, registered_model="p")
        rollback = RollbackOperator(task_id="rollback", model="p", why="complaints")
    found: list[TransitionOperator] = [register, approve, canary, promote, rollback]
    return {operator.task_id: operator for operator in found}


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """Signs what its operators answer for; no Airflow knows anything of it."""
    key = tmp_path / "release.pem"
    make_key(key)
    monkeypatch.setattr(transition, "_keepers", lambda _: [])
    return replace(Deployment.load(), store=f"file://{tmp_path}/store", release_key=str(key))


def context() -> Any:
    run = SimpleNamespace(conf=None, data_interval_start=NIGHT, data_interval_end=NIGHT, triggering_user_name=None)
    ti = SimpleNamespace(try_number=1, xcom_push=lambda **_: None, map_index=-1, max_tries=1)
    return {"params": {}, "dag_run": run, "run_id": "night", "ti": ti, "task_state_store": {}, "dag": DAG(dag_id="p")}


def of_other_model(ref: ModelVersionRef) -> ModelVersionRef:
    return replace(ref, name="b", place="pipelines/b/register/k6")


@pytest.mark.parametrize("task_id", ["approve", "canary", "promote"])
def test_a_version_of_another_model_is_refused(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, task_id: str
) -> None:
    """Broken: who may edit XComs of a pipeline without approval promotes what waits for the approvers of another."""
    operators[task_id].check_own(version_ref)
    with pytest.raises(StepFailedError, match="its input is version 1 of model 'b', and it acts on 'p': clear the"):
        operators[task_id].check_own(of_other_model(version_ref))


@pytest.mark.parametrize("task_id", ["register", "approve", "canary", "promote"])
def test_what_another_pipeline_made_is_refused(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, task_id: str
) -> None:
    """Broken: a report of another pipeline, judged by its milder rules, is registered under this one's name."""
    ref = version_ref.parent if task_id == "register" else version_ref
    operators[task_id].check_own(ref)
    for place, named in (("pipelines/b/evaluate/k5", "pipeline='b'"), ("experiments/vera/p/evaluate/k5", "=")):
        with pytest.raises(StepFailedError, match=rf"made at '{place}', and it takes what pipeline 'p' made.*{named}"):
            operators[task_id].check_own(replace(ref, place=place))


def test_a_judged_experiment_is_registered(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef
) -> None:
    """Broken: a training of an experiment that the pipeline has evaluated could not be released."""
    checkpoint = replace(version_ref.ancestor(CheckpointRef), place="experiments/vera/p/train/k4")
    operators["register"].check_own(replace(version_ref.parent, parent=checkpoint))


def test_a_rollback_takes_its_own_model_back(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef
) -> None:
    operators["rollback"].check_own(replace(version_ref, place=""))
    with pytest.raises(StepFailedError, match="version 1 of 'b', and it takes back 'p'"):
        operators["rollback"].check_own(replace(version_ref, place="", name="b"))


def test_an_approval_by_itself_is_told_its_model(version_ref: ModelVersionRef) -> None:
    with DAG(dag_id="p", schedule=None, start_date=datetime(2024, 1, 1)):
        alone = ApproveOperator(task_id="a", version="{{ x }}", approvers=["vera"])
        told = ApproveOperator(task_id="b", version="{{ x }}", approvers=["vera"], registered_model="q")
    told.check_own(replace(version_ref, name="q"))
    with pytest.raises(StepFailedError, match="version 1 of model 'p', and it acts on 'q'"):
        told.check_own(version_ref)
    del alone.dag.task_dict["b"]
    with pytest.raises(StepFailedError, match="nothing in its DAG names: give it registered_model="):
        alone.check_own(version_ref)


def test_the_step_is_not_launched_for_another_model(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransitionOperator, "check_trail", lambda *_: None)
    promote = operators["promote"]
    promote.upstream = version_ref.to_wire()
    assert promote.launch(Asked.of(context(), promote.upstream), Deployment.load()).input.step == "promote"
    promote.upstream = of_other_model(version_ref).to_wire()
    with pytest.raises(StepFailedError, match="'b', and it acts on 'p'"):
        promote.launch(Asked.of(context(), promote.upstream), Deployment.load())


class Trail:
    """An audit trail in the store of a deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self.folder = Path(deployment.store.removeprefix("file://"))
        self.key = load_key(str(deployment.release_key))

    def write(self, key: str, data: bytes) -> None:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def entry(self, number: int, *, signed: bool, **values: Any) -> Artifact:
        data = json.dumps({"number": number, "model": "p", "version": "1", **values}).encode()
        key, sha256 = entry_key("p", number), hashlib.sha256(data).hexdigest()
        self.write(key, data)
        if signed:
            seal = Seal(model="p", number=number, sha256=sha256, signed_for="x", at="2024-01-01T00:00:00+00:00")
            self.write(seal_key("p", number), seal.sealed(self.key))
        return Artifact(key=key, sha256=sha256, num_bytes=len(data))

    def is_signed(self, number: int) -> bool:
        return (self.folder / seal_key("p", number)).exists()


def staged(at: str) -> dict[str, Any]:
    live = {"stage": "staging", "since": at, "report": None, "approver": None, "decisions": []}
    return {"live": {"1": live}, "former": []}


@pytest.fixture
def trail(deployment: Deployment) -> Callable[..., tuple[Trail, Artifact]]:
    """Two entries: version 1 is registered, and promoted by task ``promote``; the second one is not signed."""

    def make(*, first_signed: bool = True, **changes: Any) -> tuple[Trail, Artifact]:
        made, at = Trail(deployment), NIGHT.isoformat()
        first = made.entry(1, signed=first_signed, at=at, stages=staged(at))
        promoted = staged(at)
        promoted["live"]["1"]["stage"] = "production"
        told = {"at": at, "action": "promote", "who": "p/night/promote", "why": "better", "previous": first.sha256,
                "from_stage": "staging", "to_stage": "production", "former_champion": None, "report": None,
                "approver": None, "stages": promoted}  # fmt: skip
        return made, made.entry(2, signed=False, **{**told, **changes})

    return make


def conclude(operator: TransitionOperator, deployment: Deployment, result: Any) -> None:
    operator._conclude(Outcome(result=result, status="ended"), context(), deployment)


def test_the_entry_that_the_step_wrote_is_signed(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, deployment: Deployment, trail: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(PromoteOperator, "succeeded", lambda *_: None)
    promote, (made, artifact) = operators["promote"], trail()
    promote.upstream = version_ref.to_wire()
    result = replace(version_ref, place="pipelines/p/promote/k7", artifacts={ENTRY: artifact})
    conclude(promote, deployment, result)
    assert made.is_signed(2)
    conclude(promote, deployment, result)  # a retry finds it


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"version": "99"}, "its version is '99', and must be '1'", id="another version"),
        pytest.param({"who": "p/other/promote"}, "its who is 'p/other/promote'", id="another task"),
        pytest.param({"action": "rollback"}, "its action is 'rollback'", id="another action"),
        pytest.param({"first_signed": False}, "nobody has signed the one before it", id="upon a planted one"),
        pytest.param({"previous": "0" * 64}, "its previous is", id="upon another one"),
    ],
)
def test_a_planted_entry_is_not_signed(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, deployment: Deployment, trail: Any,
    changes: dict[str, Any], why: str,
) -> None:  # fmt: skip
    """Broken: who may write the store has a promotion of their choice signed, by a ref.json that names it."""
    promote, (made, artifact) = operators["promote"], trail(**changes)
    promote.upstream = version_ref.to_wire()
    result = replace(version_ref, place="pipelines/p/promote/k7", artifacts={ENTRY: artifact})
    with pytest.raises(StepFailedError, match=f"'promote' does not sign .*{why}.*mlops audit sign p 2"):
        conclude(promote, deployment, result)
    other = replace(artifact, key="models/p/audit/x/000000000002.json")
    with pytest.raises(StepFailedError, match="is no entry of the audit trail of p"):
        conclude(promote, deployment, replace(result, artifacts={ENTRY: other}))
    with pytest.raises(StepFailedError, match="another one than the step names"):
        conclude(promote, deployment, replace(result, artifacts={ENTRY: replace(artifact, sha256="0" * 64)}))
    assert not made.is_signed(2)


def test_a_failure_does_not_have_a_planted_entry_signed(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, deployment: Deployment, trail: Any
) -> None:
    """Broken: a pod's failure is a file in the store, and whatever it names is signed."""
    promote, (made, artifact) = operators["promote"], trail()
    promote.upstream = version_ref.to_wire()
    named = {ENTRY: {"key": artifact.key, "sha256": artifact.sha256}}
    with pytest.raises(StepFailedError, match="no canary whose champion has changed"):
        conclude(promote, deployment, Failure("ChampionChangedError", "changed", False, named))
    register = operators["register"]
    register.upstream = version_ref.parent.to_wire()
    with pytest.raises(StepFailedError, match="a failure of register moves nothing"):
        conclude(register, deployment, Failure("X", "x", False, named))
    assert not made.is_signed(2)


def test_a_planted_result_is_not_taken_for_the_steps(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, deployment: Deployment
) -> None:
    promote = operators["promote"]
    promote.upstream = version_ref.to_wire()
    with pytest.raises(StepFailedError, match="version 99 of p, is not about what the task was given: .*delete pipel"):
        conclude(promote, deployment, replace(version_ref, place="pipelines/p/promote/k7", version="99"))


def test_files_that_are_not_the_versions_are_not_signed(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Broken: a planted list of files replaces the one that was signed, and servers load them."""
    sent: list[str] = []

    async def set_tag(*arguments: Any) -> None:
        sent.append(arguments[3])

    known = {"1": replace(version_ref, place="")}
    monkeypatch.setattr(register_module, "set_version_tag", set_tag)
    monkeypatch.setattr(register_module, "version_of", lambda *_, version: known.get(version))
    register, made = operators["register"], Trail(deployment)
    register.upstream = version_ref.parent.to_wire()

    def result(data: bytes, folder: str = version_ref.place, **changes: Any) -> ModelVersionRef:
        key = f"{folder}/package.{len(data)}.json"
        made.write(key, data)
        artifact = Artifact(key=key, sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data))
        return replace(version_ref, artifacts={PACKAGE: artifact}, **changes)

    with pytest.raises(StepFailedError, match="names mine/package.* as its files"):
        conclude(register, deployment, result(b"[]", "mine"))
    with pytest.raises(StepFailedError, match="was not registered in MLflow for this evaluation"):
        conclude(register, deployment, result(b"[]", version="2"))
    conclude(register, deployment, result(b"[]"))
    with pytest.raises(StepFailedError, match=r"signature of other files for version 1 of p.*delete models/p/packages"):
        conclude(register, deployment, result(b"[1]"))
    conclude(register, deployment, result(b"[]"))
    trusted = [made.key.public]
    assert [PackageSeal.unsealed(each.encode(), trusted).version for each in sent] == ["1", "1"]
    assert (made.folder / package_key("p", "1")).read_bytes() == sent[0].encode()


def test_a_canary_ends_by_its_entry_and_not_by_its_tasks_state(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Broken: who may edit task instances ends a canary before anybody has sent it a request."""
    canary, made = operators["canary"], Trail(deployment)
    assert isinstance(canary, CanaryOperator)
    monkeypatch.setattr(canary, "_deployment", lambda: deployment)
    stages = staged(NIGHT.isoformat())
    begun = made.entry(2, signed=True, action="canary", stages=stages)
    ended = canary._end(replace(version_ref, artifacts={ENTRY: begun}))
    assert ended == NIGHT.timestamp() + 30 * 60
    for artifact in (made.entry(3, signed=True, action="register", stages=stages), replace(begun, sha256="0" * 64)):
        with pytest.raises(StepFailedError, match="is not the entry by which version 1 of p became the canary"):
            canary._end(replace(version_ref, artifacts={ENTRY: artifact}))


def test_promote_is_told_of_the_canary() -> None:
    """Broken: a canary that somebody has marked as success is as good as one that was watched."""
    with DAG(dag_id="p", schedule=None, start_date=datetime(2024, 1, 1)):
        watched = PromoteOperator(task_id="a", version="{{ x }}", registered_model="p", canary=CANARY)
        other = PromoteOperator(task_id="b", version="{{ x }}", registered_model="p")
    assert watched.config(watched.settings)["canary_minutes"] == 30
    assert "canary_minutes" not in other.config(other.settings), "the run keys of earlier releases stay as they are"


def test_a_yes_of_somebody_who_is_no_approver_any_more_is_not_handed_on(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Broken: with minimum: 2, one valid approval promotes."""
    from mlops_provider.operators.question import Asked as Question

    approve = operators["approve"]
    assert isinstance(approve, ApproveOperator)
    settings = Approval(approvers=["otto", "greta"], minimum=2)
    question = question_about(version_ref, settings, "p/night/approve/-1/1")
    asked = Question(question=question, approval=settings, started_by="", with_names=True)
    given = [replace(decision(version_ref, person), question=question, answer=question.options[0])
             for person in ("vera", "otto", "greta")]  # fmt: skip
    for found in given:
        approve._record(found, given.index(found) + 1, deployment)
    recorded = approve._recorded(asked, deployment)
    assert [found.by for found in recorded] == ["vera", "otto", "greta"], "more than the minimum are read"
    assert asked.verdict(recorded[:2]) is None
    monkeypatch.setattr(TransitionOperator, "execute", lambda self, _: version_ref.to_wire())
    approve._act_on(asked, recorded, context())
    assert approve.asked["why"] == "approved by otto and greta: good"
    assert [key.rpartition("-")[2] for key in approve.asked["decisions"]] == ["2.json", "3.json"]
    assert approve.approver == "otto and greta"


class State(dict[str, Any]):
    """As Airflow's state of a task."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def test_an_answer_that_does_not_count_gives_no_more_time(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef
) -> None:
    """Broken: who may not answer keeps a version waiting for ever, by answering once a day."""
    operator, approval = operators["approve"], Approval(approvers=["vera"], timeout_hours=24)
    assert isinstance(operator, ApproveOperator)
    question = question_about(version_ref, approval, "p/night/approve/-1/1")
    asked = AskedApproval(question=question, approval=approval, started_by="", with_names=True)
    told = context() | {"task_state_store": State()}
    assert operator._time_left(asked, told, is_new=True) == timedelta(hours=24)
    begun = datetime.fromisoformat(told["task_state_store"][ASKED_AT])
    told["task_state_store"][ASKED_AT] = (begun - timedelta(hours=23)).isoformat()
    assert timedelta(minutes=59) < operator._time_left(asked, told, is_new=False) <= timedelta(hours=1)
    told["task_state_store"][ASKED_AT] = (begun - timedelta(hours=25)).isoformat()
    assert operator._time_left(asked, told, is_new=False) == timedelta(seconds=1)
    assert operator._time_left(asked, told, is_new=True) == timedelta(hours=24), "another approver is asked"


def test_the_second_of_two_people_is_asked_where_no_form_is_made_anew(
    operators: dict[str, TransitionOperator], version_ref: ModelVersionRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: where a server of its own serves tasks, an approval by two people fails for good at the first yes."""
    operator, approval = operators["approve"], Approval(approvers=["vera", "otto"], minimum=2)
    assert isinstance(operator, ApproveOperator)
    sent: list[CreateHITLDetailPayload] = []

    def send(payload: CreateHITLDetailPayload) -> HITLDetailRequestResult:
        """Answer as Airflow does: with the form of the first question."""
        sent.append(payload)
        return HITLDetailRequestResult(**sent[0].model_dump(exclude={"type"}))

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)
    told = context() | {"task": operator, "task_state_store": State()}
    told["ti"].id, told["ti"].run_id = UUID(int=1), "night"

    def ask(ref: ModelVersionRef, *yes: str) -> None:
        question = question_about(ref, approval, "p/night/approve/-1/1")
        asked = AskedApproval(question=question, approval=approval, started_by="", with_names=True)
        operator._ask(asked, [asked.decision(answered(asked, person)) for person in yes], told)

    def answered(asked: AskedApproval, person: str) -> dict[str, Any]:
        by = {"id": person, "name": person}
        return {"chosen_options": [asked.question.options[0]], "responded_by_user": by, "responded_at": NIGHT}

    for yes in ((), ("vera",)):
        with pytest.raises(TaskAwaitingInput):
            ask(version_ref, *yes)
    assert [[user.id for user in each.assigned_users or ()] for each in sent] == [["vera", "otto"], ["otto"]]
    with pytest.raises(StepFailedError, match="still shows an earlier question .* without --apps"):
        ask(replace(version_ref, version="2"))
