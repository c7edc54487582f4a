"""Register: a passed evaluation in, a model version in staging out."""

from __future__ import annotations

from pathlib import Path

from mlops.contract.refs import INPUT, CheckpointRef, ModelVersionRef, ReportRef, canonical_json, digest_of
from mlops.contract.sections.steps import RegisterStep
from mlops.contract.sections.warm_start import Initialise
from mlops.contract.step import StepInput
from mlops.registry.promotion import Promotion
from mlops.registry.registration import register_once
from mlops.registry.transitions import Author
from mlops.serving.archive import unarchived
from mlops.serving.package import contract
from mlops.serving.verified_loading import files_of
from mlops.signing.packages import PACKAGE
from mlops.steps import StepContext
from mlops.tracking.connection import allowed, connect
from mlops.tracking.model_registry import ModelRegistry
from mlops.tracking.provenance import git_commit
from mlops.tracking.run import reopen_run
from mlops.tracking.stored_model import StoredModel, store_model


def run(context: StepContext) -> ModelVersionRef:
    config = context.section(RegisterStep)
    report = context.input.ref
    assert isinstance(report, ReportRef)
    client = connect(context.deployment.tracking_uri)
    tracked = reopen_run(client, report.parent.tracking_run)
    registry = ModelRegistry(client=client, name=config.registered_model)

    files: list[list[str]] = []

    def unpack() -> Path:
        folder = unarchived(context.store, report, context.scratch)
        files.extend(files_of(folder))
        return folder

    def store() -> StoredModel:
        folder = unpack()
        return store_model(tracked, config.registered_model, folder, digest_of(files))

    registered = register_once(
        registry,
        report,
        contract=contract(context.store, report.parent),
        store=store,
        git_commit=tracked.tag("mlops.git_commit") or git_commit(context.deployment.home),
        run_key=context.run.run_key,
        tags=_claims(context, report.parent),
    )
    if not files:  # an earlier try has stored them
        unpack()
    artifact = report.artifacts.get("report")
    promotion, by = (
        Promotion.of(registry, context.store, config.keys),
        Author(who=context.run.author, why=report.reason),
    )
    promotion.stage(registered.version, by, report=artifact.key if artifact else None)
    return ModelVersionRef(
        place=context.place,
        artifacts={
            **promotion.trail.written_by(by.who, "register"),
            PACKAGE: context.store.put_artifact(context.place, f"{PACKAGE}.json", canonical_json(files)),
        },
        name=config.registered_model,
        version=registered.version,
        semantic_version=registered.semantic_version,
        parent=report,
    )


def _claims(context: StepContext, checkpoint: CheckpointRef) -> dict[str, str]:
    """What is said of weights that were trained elsewhere, as tags of the version."""
    if (told := checkpoint.artifacts.get(INPUT)) is None or "initial_weights" not in checkpoint.artifacts:
        return {}
    config = StepInput.load(context.store.read(told).decode()).config
    start = Initialise.model_validate(config["initialise"])
    tags = {allowed(f"mlops.claimed.{name}"): str(value) for name, value in start.claimed.items()}
    return tags if start.known_as is None else tags | {"mlops.known_as": start.known_as}
