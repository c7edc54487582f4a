"""The sections ``register`` and ``promote``: a version's name, and who must agree before it goes into production."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from mlops.contract.section import RULE_PATTERN, URL_PATTERN, Name, Section, Text


class Register(Section):
    """Register the model version, in staging; skipped where the evaluation did not pass."""

    registered_model: Name


class Approval(Section):
    """A person agrees before the version goes into production, in Airflow's own form."""

    approvers: list[Text] = Field(min_length=1)
    """Who may answer: names or ids of users, as Airflow's auth manager knows them."""
    minimum: int = Field(default=1, ge=1)
    """How many of them must agree; one rejection is enough to reject."""
    separation: bool = True
    """Whether who started the run by hand may not approve its version. False where only one person works with it."""
    timeout_hours: float = Field(default=24, gt=0, le=24 * 365)
    on_timeout: Literal["reject", "approve"] = "reject"
    """Decision taken when nobody answers in time."""

    @model_validator(mode="after")
    def _as_many_approvers(self) -> Approval:
        if self.minimum > len(set(self.approvers)):
            raise ValueError(
                f"consistent: minimum is {self.minimum}, and approvers names {len(set(self.approvers))} of them"
            )
        return self


SAMPLES = "samples"
"""The metric that says how many requests the canary has answered so far."""
Rule = Annotated[str, StringConstraints(pattern=RULE_PATTERN)]
"""``error_rate <= 0.01``: a metric, one of ``< <= > >=``, and a number."""
Url = Annotated[str, StringConstraints(pattern=URL_PATTERN)]


class HttpSource(Section):
    """A JSON object of numbers, e.g. ``{"samples": 1200, "error_rate": 0.003}``."""

    kind: Literal["http"]
    url: Url
    """``{model}`` and ``{version}`` stand for the canary's."""


class PrometheusSource(Section):
    kind: Literal["prometheus"]
    url: Url
    """The server's root, e.g. ``http://prometheus:9090``."""
    queries: dict[str, str] = Field(min_length=1)
    """PromQL by metric; ``{model}`` and ``{version}`` stand for the canary's. Each gives one series at most."""


class Canary(Section):
    """Serve the version to a part of the requests, and look how it does."""

    minutes: float = Field(gt=0, le=60 * 24 * 365)
    source: Annotated[HttpSource | PrometheusSource, Field(discriminator="kind")]
    """Where live metrics come from. What serves loads the version of the alias ``canary``."""
    passes: list[Rule] = Field(min_length=1)
    """All must hold at the end."""
    fails: list[Rule] = []
    """Each ends the canary at once."""
    min_samples: int = Field(default=0, ge=0)
    """Requests that there must have been, in the metric ``samples``; before, no rule counts."""
    poll_seconds: float = Field(default=30, gt=0, le=3600)

    @model_validator(mode="after")
    def _metrics_that_the_source_has(self) -> Canary:
        if not isinstance(self.source, PrometheusSource):
            return self
        needed = {found[1] for rule in (*self.passes, *self.fails) if (found := re.match(RULE_PATTERN, rule))}
        needed |= {SAMPLES} if self.min_samples else set()
        if missing := sorted(needed - self.source.queries.keys()):
            raise ValueError(f"consistent: source.queries lacks {', '.join(missing)}, which the rules ask for")
        return self


class Promote(Section):
    """Put the version into production: at once, or after an approval, a canary, or both."""

    approval: Approval | None = None
    """None: nobody is asked."""
    canary: Canary | None = None
    """None: it goes into production without one."""
