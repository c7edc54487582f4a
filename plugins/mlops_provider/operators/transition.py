"""What the operators share whose steps move a model version: they answer for the entries of its audit trail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import Variable

from mlops.contract.outages import ANCHOR_BUCKET
from mlops.contract.refs import ModelVersionRef
from mlops.contract.section import SpecError
from mlops.contract.step import Failure, StepInput
from mlops.signing.aws import AwsAwayError, AwsRefusedError
from mlops.signing.envelope import EnvelopeError
from mlops.signing.seals import ENTRY, Seal, entry_of_key, seal_key
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepOutageError
from mlops_provider.launchers.base import Outcome
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.keys import signed, trusted_keys
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
    """

    def _document(self, asked: Asked, deployment: Deployment) -> StepInput:
        document = super()._document(asked, deployment)
        ref = document.ref
        model = ref.name if isinstance(ref, ModelVersionRef) else document.config["registered_model"]
        if (why := deployment.tenant.why_not_name(model)) is not None:
            raise SpecError(f"task {self.task_id!r}: the input is about a model of others: {why}")
        self.check_trail(model, deployment)
        # Not among the settings: another key is no reason to do the work again.
        keys = trusted_keys(deployment) if deployment.public_keys_file is not None else []
        return replace(document, config={**document.config, "keys": keys})

    def _conclude(self, outcome: Outcome, context: Context, deployment: Deployment) -> dict[str, Any]:
        result = outcome.result
        wrote = None
        if isinstance(result, Failure):
            wrote = result.details.get(ENTRY)
        elif result is not None and (artifact := result.artifacts.get(ENTRY)) is not None:
            wrote = {"key": artifact.key, "sha256": artifact.sha256}
        if wrote is not None and deployment.release_key is not None:
            key, sha256 = wrote["key"], wrote["sha256"]
            self.patience(context).with_work(lambda: self._sign(key, sha256, context, deployment))
        return super()._conclude(outcome, context, deployment)

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

    def _sign(self, key: str, sha256: str, context: Context, deployment: Deployment) -> None:
        from mlops_provider.anchors import note_newest
        from mlops_provider.connections import store_of
        from mlops_provider.patience import store_errors

        model, number = entry_of_key(key)
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
            asyncio.run(self._put(store, seal, envelope, trusted))
        for keeper in _keepers(deployment):
            with store_errors(deployment.store, f"task {self.task_id!r} cannot sign the audit trail"), _bucket_errors():
                found = note_newest(keeper, store, model, number, sha256)
            if found is not None:
                raise StepFailedError(f"task {self.task_id!r}: {found}")
        self.log.info("signed entry %d of the audit trail of %s", number, model)

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
