"""Register a model version exactly once."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from mlops_provider.refs import ReportRef
from mlops_provider.step import BadConfigError
from training.tracking.connection import allowed
from training.tracking.model_registry import DIGEST_TAG, REF_TAG, ModelRegistry
from training.tracking.provenance import lineage_tags

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterConfig:
    """The ``register`` section of a pipeline."""

    registered_model: str


def register_once(registry: ModelRegistry, report: ReportRef, *, source: str, git_commit: str, run_key: str) -> str:
    """
    The version of this report: found by the report's digest, else created. Killed at any point and tried again, or
    run by two processes at once, it comes to one version.

    :param source: artifact URI of the weights
    :raises BadConfigError: where the evaluation did not pass
    """
    if not report.passed:
        raise BadConfigError(f"this model must not be registered, its evaluation did not pass: {report.reason}")
    digest = report.digest()
    if found := registry.versions_with_digest(digest):
        logger.info("version %s of %s is this model already", found[0], registry.name)
    else:
        created = registry.create(
            source=source,
            run_id=report.parent.tracking_run,
            # With the version, not after it: a version without its lineage is never there to be seen.
            tags={
                DIGEST_TAG: digest,
                REF_TAG: json.dumps(report.to_wire(), sort_keys=True),
                "mlops.git_commit": git_commit,
                "mlops.run_key": run_key,
                **lineage_tags(report),
                **{allowed(f"mlops.metric.{name}"): f"{value:.6g}" for name, value in report.metrics.items()},
            },
            description=report.reason,
        )
        logger.info("registered %s version %s", registry.name, created)
        found = registry.versions_with_digest(digest)
    keep, *surplus = found
    for version in surplus:
        logger.info("version %s is a duplicate made at the same time as version %s: deleting it", version, keep)
        registry.delete(version)
    return keep
