"""What the operators share whose steps move a model version: they answer for the entries of its audit trail."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import Variable

from mlops.contract.outages import ANCHOR_BUCKET
from mlops.contract.refs import ModelVersionRef, Ref, ReportRef, ref_of
from mlops.contract.section import SpecError
from mlops.contract.step import STEPS, Failure, StepInput
from mlops.signing.aws import AwsAwayError, AwsRefusedError
from mlops.signing.envelope import EnvelopeError
from mlops.signing.seals import ENTRY, Seal, entry_key, entry_of_key, seal_key
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepOutageError
from mlops_provider.launchers.base import Outcome
from mlops_provider.operators.asked_transition import AskedTransition, NotAskedError
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.keys import signed, trail_keys, trusted_keys
from mlops_provider.operators.runs import Asked

if TYPE_CHECKING:
    from airflow.sdk import Context
    from obstore.store import ObjectStore

    from mlops_provider.anchors import Keeper


class TransitionOperator(StepOperator):
    """
    Runs a step that appends to the audit trail of a model.

    Before it, the entry that Airflow knows as the newest must be in the trail as it was. After it, the entry that the
    step wrote is signed, and becomes the newest one that Airflow knows: who may write the store cannot change that.
    A deployment without ``[mlops] release_key`` signs nothing.

    An XCom can be edited, and who may write the store can put there what a step would have: the operator takes only
    what its own pipeline made of its own model, and signs only an entry that is what it has asked for.
    """

    registered_model: str | None = None
    """Of the task; None: that of the DAG's register and promote."""
    approver: str | None = None
    """Who approved, as the entry says, where the task asks for that."""

    def models(self) -> list[str]:
        return super().models() if self.registered_model is None else [self.registered_model]

    def check_own(self, ref: Ref) -> None:
        """:raises StepFailedError: where a ref is of another model, or was made by another pipeline"""
        if isinstance(ref, ModelVersionRef):
            self.check_model(ref)
        folder = f"pipelines/{self.pipeline}/"
        if not ref.place.startswith(folder):
            other = re.fullmatch(r"pipelines/([^/]+)/.+", ref.place)
            raise StepFailedError(
                f"task {self.task_id!r}: its input was made at {ref.place!r}, and it takes what pipeline "
                f"{self.pipeline!r} made, below {folder}: clear the task that returned it. Where it takes another "
                f"pipeline's on purpose, give it pipeline={other[1] if other else '...'!r}"
            )

    def check_model(self, ref: ModelVersionRef) -> None:
        """:raises StepFailedError: where a ref is of another model than the task"""
        # A mapped task, or one of another provider, names no model.
        named = (task.models() for task in self.dag.tasks if isinstance(task, TransitionOperator))
        own = self.models() or sorted({model for models in named for model in models})
        if ref.name not in own:
            raise StepFailedError(
                f"task {self.task_id!r}: its input is version {ref.version} of model {ref.name!r}, and it acts on "
                + (
                    f"{' or '.join(map(repr, own))}: clear the task that returned it"
                    if own
                    else "a model that nothing in its DAG names: give it registered_model="
                )
            )

    def _document(self, asked: Asked, deployment: Deployment) -> StepInput:
        document = super()._document(asked, deployment)
        ref = document.ref
        model = ref.name if isinstance(ref, ModelVersionRef) else document.config["registered_model"]
        if (why := deployment.tenant.why_not_name(model)) is not None:
            raise SpecError(f"task {self.task_id!r}: the input is about a model of others: {why}")
        assert ref is not None, "these steps take a ref"
        self.check_own(ref)
        self.check_trail(model, deployment)
        # Not among the settings: another key is no reason to do the work again.
        return replace(document, config={**document.config, "keys": trail_keys(deployment)})

    def _conclude(self, outcome: Outcome, context: Context, deployment: Deployment) -> dict[str, Any]:
        result = outcome.result
        wrote, made = None, None
        if isinstance(result, Failure):
            wrote = result.details.get(ENTRY)
        elif result is not None:
            made = ModelVersionRef.from_wire(result.to_wire())
            self.patience(context).with_work(lambda: self.check_made(made, deployment))
            if (artifact := made.artifacts.get(ENTRY)) is not None:
                wrote = {"key": artifact.key, "sha256": artifact.sha256}
        if wrote is not None and deployment.release_key is not None:
            key, sha256 = str(wrote["key"]), str(wrote["sha256"])
            asked = self._asked_transition(made, context)
            self.patience(context).with_work(lambda: self._sign(key, sha256, asked, context, deployment))
        return super()._conclude(outcome, context, deployment)

    def check_made(self, made: ModelVersionRef, deployment: Deployment) -> None:
        """:raises StepFailedError: where what lies at the task's place is not about what the task was given"""
        given = ref_of(STEPS[self.step].consumes, self.upstream)
        if isinstance(given, ModelVersionRef):
            is_right = (made.name, made.version, made.parent) == (given.name, given.version, given.parent)
        else:
            is_right = made.name in self.models() and made.parent == given
        if not is_right:
            raise self._not_ours(made, "is not about what the task was given")

    def _not_ours(self, made: ModelVersionRef, why: str) -> StepFailedError:
        return StepFailedError(
            f"task {self.task_id!r}: what is committed at {made.place}, version {made.version} of {made.name}, {why}: "
            f"somebody else may have written it. Look who; then delete {made.place}/ref.json, and clear the task"
        )

    def _asked_transition(self, made: ModelVersionRef | None, context: Context) -> AskedTransition:
        """
        Return what the step was asked for.

        :param made: what it returned; None where it failed
        """
        config = self.config(self.settings)
        given = ref_of(STEPS[self.step].consumes, self.upstream)
        report = given.parent if isinstance(given, ModelVersionRef) else given
        assert isinstance(report, ReportRef)
        run = Asked.of(context, self.upstream)
        who = run.identity(self.pipeline, "", str(self.dag.timezone), self.dag_id, self.task_id).author
        why, action = config.get("why") or report.reason, config.get("action", "register")
        if made is None:
            if action != "promote":
                raise StepFailedError(f"task {self.task_id!r}: a failure of {action} moves nothing, and names an entry")
            assert isinstance(given, ModelVersionRef)
            return AskedTransition(
                model=given.name,
                version=given.version,
                action="archive",
                who=who,
                why=None,  # the step says which champion it found
                champion=report.champion,
                because_champion_changed=True,
            )
        champion, page = report.champion, report.artifacts.get("report")
        if action == "rollback":
            assert isinstance(given, ModelVersionRef)
            champion, page = given.version, made.parent.artifacts.get("report")
        return AskedTransition(
            model=made.name,
            version=made.version,
            action=action,
            who=who,
            why=why,
            champion=champion,
            report=page.key if page is not None else None,
            approver=self.approver,
            decisions=tuple(config.get("decisions", ())),
            needs_approval=bool(config.get("approvals")),
            canary_minutes=config.get("canary_minutes"),
        )

    def check_trail(self, model: str, deployment: Deployment) -> None:
        """:raises StepFailedError: where the entry that Airflow knows is gone, or is another one"""
        from mlops_provider.anchors import difference
        from mlops_provider.connections import store_of
        from mlops_provider.patience import store_errors

        for keeper in _keepers(deployment):
            with store_errors(deployment.store, f"task {self.task_id!r} cannot read the audit trail"), _bucket_errors():
                found = difference(keeper, store_of(deployment), model)
            if found is not None:
                raise StepFailedError(f"task {self.task_id!r}: {found}")

    def _sign(self, key: str, sha256: str, asked: AskedTransition, context: Context, deployment: Deployment) -> None:
        from mlops_provider.anchors import note_newest
        from mlops_provider.connections import store_of
        from mlops_provider.patience import store_errors

        model = asked.model
        try:
            number = entry_of_key(key)[1]
        except ValueError:
            number = 0
        if number < 1 or key != entry_key(model, number):
            raise StepFailedError(f"task {self.task_id!r}: {key!r} is no entry of the audit trail of {model}")
        seal = Seal(
            model=model,
            number=number,
            sha256=sha256,
            signed_for=f"{self.dag_id}/{context['run_id']}/{self.task_id}",
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        envelope = signed(seal, deployment, self.task_id)
        with store_errors(deployment.store, f"task {self.task_id!r} cannot sign the audit trail"):
            trusted, store = trusted_keys(deployment), store_of(deployment)
            if not asyncio.run(is_sealed(store, model, number, sha256, trusted)):
                asyncio.run(self._check_entry(store, seal, asked, trusted))
                asyncio.run(self._put(store, seal, envelope, trusted))
        for keeper in _keepers(deployment):
            with store_errors(deployment.store, f"task {self.task_id!r} cannot sign the audit trail"), _bucket_errors():
                found = note_newest(keeper, store, model, number, sha256)
            if found is not None:
                raise StepFailedError(f"task {self.task_id!r}: {found}")
        self.log.info("signed entry %d of the audit trail of %s", number, model)

    async def _check_entry(self, store: ObjectStore, seal: Seal, asked: AskedTransition, trusted: list[str]) -> None:
        """:raises StepFailedError: where an entry is not what the task has asked for"""
        from mlops_provider.committed import read_bytes

        key, before, previous = entry_key(seal.model, seal.number), None, None
        try:
            data = await read_bytes(store, key)
            if data is None or hashlib.sha256(data).hexdigest() != seal.sha256:
                raise NotAskedError(f"it is {'missing' if data is None else 'another one than the step names'}")
            if seal.number > 1:
                earlier = await read_bytes(store, entry_key(seal.model, seal.number - 1)) or b""
                previous = hashlib.sha256(earlier).hexdigest()
                if not await is_sealed(store, seal.model, seal.number - 1, previous, trusted):
                    raise NotAskedError(
                        "nobody has signed the one before it (mlops audit sign "
                        f"{seal.model} {seal.number - 1} --why ...)"
                    )
                before = json.loads(earlier)
            asked.check(json.loads(data), before, previous)
        except (ValueError, RecursionError) as error:
            raise StepFailedError(
                f"task {self.task_id!r} does not sign {key}, for it is not what the task has asked for: {error}. "
                f"Another task, or whoever may write the store, may have made it: see `mlops models history "
                f"{seal.model}`. Clear the task that made it; or sign it, once you have looked at it: mlops audit sign "
                f"{seal.model} {seal.number} --why ...; or put an end to it: mlops models adopt {seal.model} --why ..."
            ) from error

    async def _put(self, store: ObjectStore, seal: Seal, envelope: bytes, trusted: list[str]) -> None:
        """:raises StepFailedError: where a trusted key has signed another entry of that number"""
        from obstore import put_async

        from mlops_provider.committed import read_bytes, write_new

        key = seal_key(seal.model, seal.number)
        if await write_new(store, key, envelope):
            return
        there = await read_bytes(store, key)
        assert there is not None, "a seal is never removed"
        try:
            before = Seal.unsealed(there, trusted)
        except EnvelopeError as error:
            # Somebody has put it there so that ours could not be: what is not signed may be replaced.
            self.log.warning("%s is replaced: %s", key, error)
            await put_async(store, key, envelope)
            return
        if (before.model, before.number, before.sha256) != (seal.model, seal.number, seal.sha256):
            raise StepFailedError(
                f"task {self.task_id!r}: {key} signs another entry, with SHA-256 {before.sha256[:12]}..., and the step "
                f"wrote one with {seal.sha256[:12]}...: see `mlops audit verify {seal.model}`"
            )


async def is_sealed(store: ObjectStore, model: str, number: int, sha256: str, trusted: list[str]) -> bool:
    """
    Return True if a trusted key has signed an entry, for whomever.

    :param sha256: digest of the entry's bytes
    """
    from mlops_provider.committed import read_bytes

    if (there := await read_bytes(store, seal_key(model, number))) is None:
        return False
    try:
        found = Seal.unsealed(there, trusted)
    except EnvelopeError:
        return False
    return (found.model, found.number, found.sha256) == (model, number, sha256)


def _keepers(deployment: Deployment) -> Iterator[Keeper]:
    """Who knows the newest entry of each trail."""
    from mlops_provider.anchors import InAirflow
    from mlops_provider.locked_anchors import LockedAnchors

    yield InAirflow(_Variables())
    if deployment.anchor_bucket is not None:
        yield LockedAnchors(deployment.anchor_bucket)


@contextmanager
def _bucket_errors() -> Iterator[None]:
    """Raise errors of the bucket of anchors as those of a task."""
    try:
        yield
    except AwsAwayError as error:
        raise StepOutageError(str(error), ANCHOR_BUCKET) from error
    except AwsRefusedError as error:
        raise StepFailedError(str(error)) from error


class _Variables:
    """Airflow's variables, as a task reaches them."""

    def variable(self, key: str) -> str | None:
        value: str | None = Variable.get(key, default=None)
        return value

    def set_variable(self, key: str, value: str, description: str) -> None:
        Variable.set(key, value, description=description)
