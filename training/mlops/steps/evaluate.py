"""Evaluate: a checkpoint in, a report and a verdict out."""

from __future__ import annotations

import json
import logging

from mlops.contract.refs import CheckpointRef, DatasetRef, FeaturesRef, ModelVersionRef, ReportRef, canonical_json
from mlops.contract.sections.evaluate import Evaluate
from mlops.contract.step import EXPERIMENTS, BadDataError
from mlops.data.snapshots.snapshot import Snapshot
from mlops.evaluation.champion_scoring import score_champion
from mlops.evaluation.comparison import Comparison, compare, load_metrics
from mlops.evaluation.holdout_drift import ColumnDrift, column_drifts
from mlops.evaluation.importance import column_importance, feature_importance, held_out_sample
from mlops.evaluation.model_report import Background, render
from mlops.evaluation.periods_seen import periods_seen, periods_started_from
from mlops.evaluation.serving_benchmark import measure_serving
from mlops.features.fitted import held_out
from mlops.predictor.packing import open_checkpoint
from mlops.registry.champion import Champion
from mlops.serving.archive import archived
from mlops.serving.package import package, served_example
from mlops.steps import StepContext
from mlops.tracking.connection import allowed, connect
from mlops.tracking.provenance import git_commit
from mlops.tracking.run import EVALUATION_FOLDER, MODEL_PACKAGE, reopen_run

logger = logging.getLogger(__name__)


def run(context: StepContext) -> ReportRef:
    config = context.section(Evaluate)
    checkpoint = context.input.ref
    assert isinstance(checkpoint, CheckpointRef)
    client = connect(context.deployment.tracking_uri)
    tracked = reopen_run(client, checkpoint.tracking_run)
    # The operator looks it up: code of a recipe runs here, and the registry is not for it to see.
    baseline = context.input.baselines.get("champion")
    champion = None if baseline is None else Champion.of(baseline.ancestor(ModelVersionRef))
    comparison, drifts = _compared(context, config, checkpoint, champion)
    verdict = comparison.verdict
    logger.info("%s: %s", "passed" if verdict.passed else "not passed", verdict.reason)

    background = Background(
        run=context.run,
        checkpoint=checkpoint,
        history=json.loads(context.store.read(checkpoint.artifacts["history"])),
        training_metric=comparison.training_metric,
        drifts=drifts,
        gpu=tracked.tag("mlops.hardware.gpu") or "none",
        price_per_gpu_hour=config.price_per_gpu_hour,
        git_commit=tracked.tag("mlops.git_commit") or git_commit(context.deployment.home),
        tracking_uri=context.deployment.tracking_uri,
        registered_model=config.registered_model,
    )
    report, metrics = render(comparison, background).encode(), canonical_json(comparison.document())
    files = {"report.html": report, "metrics.json": metrics}
    if verdict.passed:
        # Here, for the step that registers may change what is in production: it must run no code of a recipe.
        example = served_example(context.store, checkpoint, context.scratch)
        folder = package(context.store, checkpoint, example, context.scratch)
        files[f"{MODEL_PACKAGE}.zip"] = archived(folder, checkpoint)
    # The run of a training that is the pipeline's own says how the pipeline judged it, whoever tries something out.
    if not context.run.experiment or checkpoint.place.startswith(f"{EXPERIMENTS}/"):
        tracked.log_bytes(EVALUATION_FOLDER, files)
        tracked.log_values(
            {allowed(f"test_{name}"): value for name, value in (comparison.metrics() | comparison.latency()).items()},
            {"mlops.evaluation.passed": str(verdict.passed), "mlops.evaluation.reason": verdict.reason},
        )
    return ReportRef(
        place=context.place,
        artifacts={name.partition(".")[0]: context.publish(name, data) for name, data in files.items()},
        passed=verdict.passed,
        reason=verdict.reason,
        metrics=comparison.metrics(),
        champion=champion.version if champion else None,
        parent=checkpoint,
    )


def _compared(
    context: StepContext, config: Evaluate, checkpoint: CheckpointRef, champion: Champion | None
) -> tuple[Comparison, list[ColumnDrift]]:
    """Compare both models on the rows that are held out, and return how these rows differ from the champion's own."""
    store, scratch = context.store, context.scratch
    candidate = open_checkpoint(store, checkpoint, scratch)
    metrics = load_metrics(config, candidate, context.own)
    rows = held_out(store, checkpoint.ancestor(FeaturesRef))
    scored = candidate.score(rows)
    if not len(scored.rows):
        raise BadDataError(
            f"nothing to evaluate on: of {rows.height} held-out rows the feature set keeps none; "
            "hold out more by ingest.split, or look at the feature set's where and min_group_size"
        )
    scored.check_finite("the candidate")
    champion_scores, models, seen, drifts = None, {"candidate": candidate}, 0, []
    if champion is not None:
        logger.info("the champion is version %s of %s", champion.version, config.registered_model)
        found = score_champion(store, champion, config.registered_model, candidate, metrics, rows, scratch)
        champion_scores = found.scored
        if found.model is not None:
            models["champion"] = found.model
        seen = periods_seen(store, champion.checkpoint, checkpoint)
        before = Snapshot.open(store, champion.checkpoint.ancestor(DatasetRef))
        drifts = column_drifts(before.read_split("test"), rows)
    samples = {name: held_out_sample(model, rows) for name, model in models.items()}
    comparison = compare(
        config,
        candidate,
        metrics,
        rows,
        scored,
        champion_scores,
        champion.version if champion else None,
        measure_serving(candidate, rows, scored),
        own=context.own,
        periods_seen=seen,
        periods_started_from=periods_started_from(store, checkpoint),
        feature_importance={name: feature_importance(models[name], sample) for name, sample in samples.items()},
        column_importance={
            name: column_importance(models[name], sample, metrics[0]) for name, sample in samples.items()
        },
    )
    return comparison, drifts
