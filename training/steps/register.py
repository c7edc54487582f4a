"""Register: a passed evaluation in, a model version in staging out."""

from __future__ import annotations

from mlops_provider.refs import ModelVersionRef, ReportRef
from training.registry.promotion import Promotion
from training.registry.registration import RegisterConfig, register_once
from training.registry.transitions import Author
from training.serving.package import contract, digest_of_folder, package
from training.steps import StepContext
from training.tracking.connection import connect
from training.tracking.model_registry import ModelRegistry
from training.tracking.provenance import git_commit
from training.tracking.run import reopen_run
from training.tracking.stored_model import StoredModel, store_model


def run(context: StepContext) -> ModelVersionRef:
    config = RegisterConfig(**context.config)
    report = context.input.ref
    assert isinstance(report, ReportRef)
    client = connect(context.deployment.tracking_uri)
    tracked = reopen_run(client, report.parent.tracking_run)
    registry = ModelRegistry(client=client, name=config.registered_model)

    def store() -> StoredModel:
        folder = package(context.store, report.parent, context.scratch)
        return store_model(tracked, config.registered_model, folder, digest_of_folder(folder))

    registered = register_once(
        registry,
        report,
        contract=contract(context.store, report.parent),
        store=store,
        git_commit=tracked.tag("mlops.git_commit") or git_commit(context.deployment.home),
        run_key=context.run.run_key,
    )
    artifact = report.artifacts.get("report")
    Promotion.of(registry, context.store).stage(
        registered.version, Author(who=context.run.author, why=report.reason), report=artifact.key if artifact else None
    )
    return ModelVersionRef(
        place=context.place,
        name=config.registered_model,
        version=registered.version,
        semantic_version=registered.semantic_version,
        parent=report,
    )
