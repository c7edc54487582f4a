from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from mlops.contract.refs import ModelVersionRef, Ref, ReportRef
from mlops.contract.sections.release import Register
from mlops.signing.envelope import EnvelopeError
from mlops.signing.packages import PACKAGE, SIGNATURE_TAG, PackageSeal, package_key
from mlops_provider.connections import login_of
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.links import ModelLink, model_url
from mlops_provider.operators.champion import asked, version_of
from mlops_provider.operators.keys import signed, trusted_keys
from mlops_provider.operators.transition import TransitionOperator
from mlops_provider.operators.verified_refs import verified
from mlops_provider.registry import set_version_tag

if TYPE_CHECKING:
    from airflow.sdk import Context


class RegisterOperator(TransitionOperator):
    """
    Register the model version, in staging; skipped, with the reason, where the evaluation did not pass.

    Settings: :class:`mlops.contract.sections.release.Register`. Returns a ModelVersionRef.

    :param report: the ReportRef of the evaluation (templated)
    """

    step = "register"
    section = Register
    operator_extra_links = (ModelLink(),)

    def __init__(self, *, report: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(upstream=report, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        report = ReportRef.from_wire(self.upstream)
        if not report.passed:
            report = verified(ReportRef, self.upstream, self.task_id, self._deployment())
            raise self.skipped(f"not registered: {report.reason}", context)
        return super().execute(context)

    def check_made(self, made: ModelVersionRef, deployment: Deployment) -> None:
        super().check_made(made, deployment)
        if deployment.release_key is None:
            return
        # Which version a report has become MLflow says: nothing in the store may choose another one.
        known = version_of(made.name, deployment, f"version {made.version} of {made.name}", version=made.version)
        if known is None or known.parent != made.parent:
            raise self._not_ours(made, "was not registered in MLflow for this evaluation")

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        version = ref.ancestor(ModelVersionRef)
        self.links[ModelLink.name] = model_url(deployment, version)
        if deployment.release_key is not None:
            self._sign_package(version, context, deployment)

    def _sign_package(self, version: ModelVersionRef, context: Context, deployment: Deployment) -> None:
        """Say which files the version is, before anybody serves it."""
        from obstore import put_async

        from mlops_provider.committed import read_artifact, read_bytes, write_new
        from mlops_provider.connections import store_of
        from mlops_provider.patience import store_errors

        files, trusted = version.artifacts[PACKAGE], trusted_keys(deployment)
        seal = PackageSeal(
            model=version.name,
            version=version.version,
            sha256=files.sha256,
            files=files.key,
            signed_for=f"{self.dag_id}/{context['run_id']}/{self.task_id}",
        )
        envelope = signed(seal, deployment, self.task_id)

        async def put() -> bytes:
            name = package_key(version.name, version.version)
            if await write_new(store, name, envelope):
                return envelope
            # A version's number is given once: what lies there is of an earlier run or try, or somebody's forgery.
            # What a trusted key has signed of other files stays: the step may have been told a lie by the store.
            there = await read_bytes(store, name)
            before = None if there is None else _unsealed(there, trusted)
            is_version = before is not None and (before.model, before.version) == (seal.model, seal.version)
            if before is not None and is_version and before.sha256 != seal.sha256:
                raise StepFailedError(
                    f"task {self.task_id!r} does not sign {files.key}: {name} is a signature of other files for "
                    f"version {version.version} of {version.name}, with SHA-256 {before.sha256[:12]}..., and this is "
                    f"{seal.sha256[:12]}.... Where the model was deleted in MLflow and made anew, delete {name}, and "
                    "clear the task"
                )
            if there is not None and before is not None and replace(before, signed_for=seal.signed_for) == seal:
                return there
            await put_async(store, name, envelope)
            return envelope

        with store_errors(deployment.store, f"task {self.task_id!r} cannot sign the version"):
            store = store_of(deployment)
            if not files.key.startswith(f"{version.place}/") or asyncio.run(read_artifact(store, files)) is None:
                raise self._not_ours(version, f"names {files.key} as its files, which is not what register wrote")
            signature = asyncio.run(put())
        login = login_of("release", deployment)
        asked(
            set_version_tag(deployment.tracking_uri, version, SIGNATURE_TAG, signature.decode(), login),
            "the version cannot be signed",
        )


def _unsealed(envelope: bytes, trusted: list[str]) -> PackageSeal | None:
    """Return what a trusted key has signed; None where none has."""
    try:
        return PackageSeal.unsealed(envelope, trusted)
    except EnvelopeError:
        return None
