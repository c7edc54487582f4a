"""The ``promote`` section: who must agree before a version goes into production."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from mlops_provider.section import Section


class Approval(Section):
    """A person agrees before the version goes into production, in Airflow's own form."""

    approvers: list[Annotated[str, StringConstraints(min_length=1)]] = Field(min_length=1)
    """Who may answer: ids of users as Airflow's auth manager knows them, with the simple one their names."""
    timeout_hours: float = Field(default=24, gt=0)
    on_timeout: Literal["reject", "approve"] = "reject"
    """What nobody's answer means."""


class Promote(Section):
    """Put the version into production: at once, or after an approval."""

    approval: Approval | None = None
    """None: nobody is asked."""
