from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from signed_decisions import TRUSTED, decision, record

from mlops.contract.refs import ModelVersionRef, ReportRef
from mlops.registry.consent import Consent
from mlops.registry.promotion import Promotion
from mlops.registry.registration import Registered, register_once
from mlops.registry.semantic_version import Contract
from mlops.registry.transitions import Author
from mlops.registry.versions import report_of
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import ModelRegistry
from mlops.tracking.run import reopen_run
from mlops.tracking.stored_model import StoredModel, store_model

BY = Author(who="vera", why="a test")


@pytest.fixture
def register_report(tmp_path: Path) -> Any:
    """Registers a report with files that nobody loads here."""

    def run(registry: ModelRegistry, report: ReportRef, signature: str = "1", architecture: str = "1") -> Registered:
        def store() -> StoredModel:
            run = reopen_run(registry.client, report.parent.tracking_run)
            folder = tmp_path / "folder"
            folder.mkdir(exist_ok=True)
            (folder / "MLmodel").write_text("{}")
            return store_model(run, registry.name, folder, "1")

        contract = Contract(signature=signature, raw_schema="1", architecture=architecture)
        return register_once(registry, report, contract=contract, store=store, git_commit="c", run_key="k")

    return run


@pytest.fixture
def promotion(project: Any) -> Promotion:
    return Promotion.of(ModelRegistry(client=connect(project.tracking_uri), name=project.pipeline), project.store)


@pytest.fixture
def new_version(promotion: Promotion, tracked_report: Any, register_report: Any) -> Callable[..., str]:
    """Registers one more version and puts it into staging."""
    made: list[str] = []

    def register(*, into_staging: bool = True) -> str:
        report = tracked_report(reason=f"Good, number {len(made)}.")
        version: str = register_report(promotion.registry, report).version
        made.append(version)
        if into_staging:
            promotion.stage(version, BY, report=f"reports/{version}.html")
        return version

    return register


def tags(promotion: Promotion) -> dict[str, str]:
    return {str(found.version): found.tags.get("mlops.stage") for found in promotion.registry.versions()}


def ref_of_version(promotion: Promotion, version: str) -> ModelVersionRef:
    report = report_of(promotion.registry, version)
    return ModelVersionRef(
        place="", name=promotion.registry.name, version=version, semantic_version="1.0.0", parent=report
    )


def consent_to(promotion: Promotion, version: str, minimum: int = 1) -> Consent:
    """What a version needs where its pipeline asks so many people."""
    ref = ref_of_version(promotion, version)
    return Consent(store=promotion.trail.store, version=ref, trusted=TRUSTED, minimum=minimum)


def signed_decision(promotion: Promotion, version: str, person: str = "vera") -> str:
    """Key of the record that a person approved a version."""
    return record(promotion.trail.store, decision(ref_of_version(promotion, version), person))
