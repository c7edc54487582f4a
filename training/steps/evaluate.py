"""Evaluate: a checkpoint in, a report and a verdict out."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict

from mlops_provider.refs import CheckpointRef, ReportRef, canonical_json
from mlops_provider.step import BadDataError
from training.evaluation.comparison import Comparison, EvaluateConfig, compare
from training.evaluation.report import render
from training.evaluation.scoring import days_seen, describe, score_champion, score_rows
from training.features.fitted import held_out
from training.registry.champion import find_champion
from training.steps import StepContext
from training.tracking.connection import allowed, connect
from training.tracking.model_registry import ModelRegistry
from training.tracking.provenance import git_commit
from training.tracking.run import reopen_run
from training.trainer.metrics import check_metric

logger = logging.getLogger(__name__)


def run(context: StepContext) -> ReportRef:
    config = EvaluateConfig(**context.config)
    checkpoint = context.input.ref
    assert isinstance(checkpoint, CheckpointRef)
    description = describe(context.store, checkpoint)
    check_metric(config.metric, description.objective, grouped=description.grouped)
    client = connect(context.deployment.tracking_uri)
    tracked = reopen_run(client, checkpoint.tracking_run)
    champion = find_champion(ModelRegistry(client=client, name=config.registered_model), config.alias)

    rows = held_out(context.store, checkpoint.parent)
    candidate_scores = score_rows(context.store, checkpoint, rows, context.scratch)
    if not len(candidate_scores.rows):
        raise BadDataError(
            f"nothing to evaluate on: of {rows.height} held-out rows the feature set keeps none; "
            "hold out more by ingest.split, or look at the feature set's where and min_group_size"
        )
    champion_scores, seen = None, 0
    if champion is not None:
        logger.info("the champion is version %s of %s", champion.version, config.registered_model)
        named = f"{config.registered_model} version {champion.version} ({config.alias})"
        champion_scores = score_champion(context.store, champion.checkpoint, checkpoint, rows, context.scratch, named)
        seen = days_seen(context.store, champion.checkpoint, checkpoint)
    version = champion.version if champion else None
    comparison = compare(
        config, rows, candidate_scores, champion_scores, version, grouped=description.grouped, days_seen=seen
    )
    logger.info("%s: %s", "passed" if comparison.verdict.passed else "not passed", comparison.verdict.reason)

    report = render(
        comparison,
        run=context.run,
        checkpoint=checkpoint,
        history=json.loads(context.store.read(checkpoint.artifacts["history"])),
        training_metric=description.metric,
        git_commit=tracked.tag("mlops.git_commit") or git_commit(context.deployment.home),
        tracking_uri=context.deployment.tracking_uri,
        registered_model=config.registered_model,
    ).encode()
    metrics = canonical_json(_document(comparison))
    tracked.log_bytes("evaluation", {"report.html": report, "metrics.json": metrics})
    tracked.log_values(
        {allowed(f"test_{name}"): value for name, value in comparison.metrics().items()},
        {
            "mlops.evaluation.passed": str(comparison.verdict.passed),
            "mlops.evaluation.reason": comparison.verdict.reason,
        },
    )
    return ReportRef(
        place=context.place,
        artifacts={
            "report": context.publish("report.html", report),
            "metrics": context.publish("metrics.json", metrics),
        },
        passed=comparison.verdict.passed,
        reason=comparison.verdict.reason,
        metrics=comparison.metrics(),
        champion=version,
        parent=checkpoint,
    )


def _document(comparison: Comparison) -> dict[str, object]:
    return {
        "metric": comparison.metric,
        "verdict": asdict(comparison.verdict),
        "champion": comparison.champion_version,
        "intervals": {name: asdict(interval) for name, interval in comparison.intervals.items()},
        "log_loss": comparison.log_losses(),
        "num_rows": len(comparison.labels),
        "num_samples": comparison.num_samples,
        "num_unmeasured": comparison.num_unmeasured,
        "slices": [asdict(entry) for entry in comparison.slices],
    }
