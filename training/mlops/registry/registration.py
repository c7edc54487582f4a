"""Register a model version exactly once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mlops.contract.refs import ReportRef
from mlops.contract.step import BadConfigError
from mlops.registry.semantic_version import VERSION_TAG, Contract, semantic_version
from mlops.tracking.connection import allowed
from mlops.tracking.model_registry import DIGEST_TAG, REF_TAG, ModelRegistry
from mlops.tracking.provenance import lineage_tags
from mlops.tracking.stored_model import StoredModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """A version in the registry."""

    version: str
    """MLflow's number of the version, counted by one."""
    semantic_version: str


def register_once(
    registry: ModelRegistry,
    report: ReportRef,
    *,
    contract: Contract,
    store: Callable[[], StoredModel],
    git_commit: str,
    run_key: str,
    tags: Mapping[str, str] = MappingProxyType({}),
) -> Registered:
    """
    Return the version of this report: found by the report's digest, else created. Killed at any point and tried again,
    or run by two processes at once, it results in one version.

    :param store: stores all the model's files, before there is a version
    :param tags: further ones of the version
    :raises BadConfigError: where the evaluation did not pass
    """
    if not report.passed:
        raise BadConfigError(f"this model must not be registered, its evaluation did not pass: {report.reason}")
    digest = report.digest()
    if found := registry.versions_with_digest(digest):
        logger.info("version %s of %s is this model already", found[0], registry.name)
    else:
        created = registry.create(
            model=store(),
            run_id=report.parent.tracking_run,
            # With the version, not after it: a version without its lineage is never there to be seen.
            tags={
                DIGEST_TAG: digest,
                REF_TAG: json.dumps(report.to_wire(), sort_keys=True),
                "mlops.git_commit": git_commit,
                "mlops.run_key": run_key,
                **lineage_tags(report),
                **contract.tags(),
                **tags,
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
    return Registered(version=keep, semantic_version=_number(registry, keep, contract))


def _number(registry: ModelRegistry, version: str, contract: Contract) -> str:
    """
    Return the semantic version of a version, and set it if missing. This is done after the version exists, because only
    MLflow's own number says which version was before it: two that are registered at once get the same order.
    """
    if number := registry.tags_of(version).get(VERSION_TAG):
        return number
    number = semantic_version(contract, registry.tags_before(version))
    registry.set_tag(version, VERSION_TAG, number)
    logger.info("version %s of %s is %s", version, registry.name, number)
    return number
