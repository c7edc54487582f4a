"""The verdict of a night, as the REST API has it: what happened, whether production is safe, and what to do."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, computed_field

from mlops.contract.rest.tonight import Standing


class GoodNight(BaseModel):
    """An earlier run of the pipeline that ended well."""

    run: str
    """``DAG@RUN``."""
    due_at: datetime
    """As of :class:`Night`."""

    @property
    def day(self) -> str:
        """Its day, and its time where that is not midnight, UTC."""
        return _day(self.due_at)


class Verdict(BaseModel):
    """
    What came of a pipeline's own run, and what to do about it.

    The note of the run, messages, pages and commands say the same sentences.
    """

    run: str
    """``DAG@RUN``."""
    standing: Standing
    """As of :class:`PipelineTonight`."""
    happened: str
    """What came of the run, or what it does now; a line for each task that failed."""
    is_noted: bool = False
    """True if somebody has written a note, which Airflow's pages then show in place of this."""
    failed_nights: int = 0
    """Number of nights that failed in a row, up to this one; 0 if this one has not failed."""
    failed_since: datetime | None = None
    """When the first of them was due; null if this one has not failed."""
    last_good: GoodNight | None = None
    """The newest earlier night that ended well; null if there is none, or if this one has not failed."""
    production: str = ""
    """Whether the run has changed what is in production; empty while it is under way."""
    changes: list[str] | None = None
    """
    What differs from the last good night: settings, code, schema, data. Null if there is none to compare with, or if
    this one has not failed.
    """
    action: str = ""
    """The one thing to do next; empty if nobody needs to do anything."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentences(self) -> list[str]:
        """What there is to say beside what happened, for people."""
        return [said for said in (self._since(), self.production, self._next(), self._compared()) if said]

    def _since(self) -> str:
        if self.failed_since is None:
            return ""
        if self.failed_nights == 1:
            last = None if self.last_good is None else self.last_good.day
            return f"The last good night is {last}." if last else "No earlier night was good."
        good = "no earlier one was good" if self.last_good is None else f"the last good one is {self.last_good.day}"
        return f"{self.failed_nights} nights in a row failed, since {_day(self.failed_since)}; {good}."

    def _next(self) -> str:
        return f"Next: {self.action}" if self.action else ""

    def _compared(self) -> str:
        if self.changes is None:
            return ""
        if not self.changes:
            alike = "settings, code, schema and rows are alike in the steps that it came to"
            return f"Since the last good night: {alike}."
        return f"Since the last good night: {'; '.join(self.changes)}."


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}" if (moment.hour, moment.minute) == (0, 0) else f"{moment:%Y-%m-%d %H:%M} UTC"
