"""
Promote: move a model version between its stages. Approval, canary and rollback run this step too, after their decision.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace

from mlops.contract.refs import ModelVersionRef, ReportRef
from mlops.contract.sections.steps import PromoteStep
from mlops.contract.stage_moves import ChampionChangedError
from mlops.contract.step import BadConfigError
from mlops.registry.consent import Consent
from mlops.registry.promotion import Promotion
from mlops.registry.semantic_version import VERSION_TAG
from mlops.registry.transitions import Author
from mlops.steps import StepContext
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import REF_TAG, ModelRegistry

logger = logging.getLogger(__name__)


def run(context: StepContext) -> ModelVersionRef:
    config = context.section(PromoteStep)
    ref = context.input.ref
    assert isinstance(ref, ModelVersionRef)
    registry = ModelRegistry(client=connect(context.deployment.tracking_uri), name=ref.name)
    promotion = Promotion.of(registry, context.store, config.keys)
    consent = Consent(store=context.store, version=ref, trusted=config.keys, minimum=config.approvals)
    by = Author(who=context.run.author, why=config.why or ref.parent.reason)
    match config.action:
        case "promote":
            try:
                promotion.promote(
                    ref.version,
                    by,
                    judged_against=ref.parent.champion,
                    consent=consent if config.approvals else None,
                    canary_minutes=config.canary_minutes,
                )
            except ChampionChangedError as error:
                # A canary that cannot become the champion would be sent requests for ever.
                promotion.end_canary(ref.version, Author(who=by.who, why=str(error)))
                for name, entry in promotion.trail.written_by(by.who, "archive").items():
                    error.details[name] = asdict(entry)
                raise
        case "approve":
            decisions = consent.read(config.decisions)
            approver = " and ".join(decision.by for decision in decisions if decision.approved)
            consent.require(decisions)
            promotion.approve(ref.version, by, approver=approver, decisions=config.decisions)
        case "canary":
            promotion.canary(ref.version, by)
        case "archive":
            promotion.archive(ref.version, by)
        case "rollback":
            champion = promotion.roll_back(by, taken_back=ref.version).stages.champion
            assert champion is not None, "a rollback ends with a champion"
            ref = _version(registry, champion)
    return replace(ref, place=context.place, artifacts=promotion.trail.written_by(by.who, config.action))


def _version(registry: ModelRegistry, version: str) -> ModelVersionRef:
    tags = registry.tags_of(version)
    document = json.loads(tags.get(REF_TAG, "null"))
    if document is None:
        raise BadConfigError(
            f"version {version} of {registry.name} is in production again, but was not registered by a pipeline: "
            f"it has no tag {REF_TAG}, hence no ref that could be handed on"
        )
    return ModelVersionRef(
        place="",
        name=registry.name,
        version=version,
        semantic_version=tags.get(VERSION_TAG, ""),  # an adopted one has none
        parent=ReportRef.from_wire(document),
    )
