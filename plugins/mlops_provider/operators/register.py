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
from mlops_provider.links import ModelLink, model_url
from mlops_provider.operators.champion import asked
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

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        version = ref.ancestor(ModelVersionRef)
        self.links[ModelLink.name] = model_url(deployment, version)
        if deployment.release_key is not None:
            self._sign_package(version, context, deployment)

    def _sign_package(self, version: ModelVersionRef, context: Context, deployment: Deployment) -> None:
        """Say which files the version is, before anybody serves it."""
        from obstore import put_async

        from mlops_provider.committed import read_bytes, write_new
        from mlops_provider.connections import store_of
        from mlops_provider.patience import store_errors

        files = version.artifacts[PACKAGE]
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
            there = await read_bytes(store, name)
            if there is not None and _says(there, seal, trusted_keys(deployment)):
                return there
            await put_async(store, name, envelope)
            return envelope

        with store_errors(deployment.store, f"task {self.task_id!r} cannot sign the version"):
            store = store_of(deployment)
            signature = asyncio.run(put())
        login = login_of("release", deployment)
        asked(
            set_version_tag(deployment.tracking_uri, version, SIGNATURE_TAG, signature.decode(), login),
            "the version cannot be signed",
        )


def _says(envelope: bytes, seal: PackageSeal, trusted: list[str]) -> bool:
    """Whether it is a trusted signature of the same files, for whichever run it was made."""
    try:
        found = PackageSeal.unsealed(envelope, trusted)
    except EnvelopeError:
        return False
    return replace(found, signed_for=seal.signed_for) == seal
