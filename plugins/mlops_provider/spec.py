"""
The grammar of a ``*.pipeline.yaml``: the sections of its steps, and what the DAG is made of them.

The sections of the steps are the contract's, :mod:`mlops.contract.sections`: their JSON form is what a step's process
is told (:class:`mlops.contract.step.StepInput`).
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, croniter
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from mlops.contract.extensions import recipe_folders
from mlops.contract.grain import counted
from mlops.contract.objectives import check_fitting, known_kind
from mlops.contract.section import Json, Name, Section, TimeZone
from mlops.contract.sections.evaluate import Evaluate
from mlops.contract.sections.features import Features
from mlops.contract.sections.ingest import Ingest
from mlops.contract.sections.release import Promote, Register
from mlops.contract.sections.train import Train
from mlops.contract.sections.tune import Tune, fitted
from mlops.contract.sections.validate import Validate
from mlops_provider.launcher_names import LAUNCHERS, check_settings
from mlops_provider.notify_spec import EVENTS, MOST_HOURS, Notify
from mlops_provider.pod_spec import Place, Pods, of_step
from mlops_provider.team_spec import TeamName

SECTIONS: dict[str, type[Section]] = {
    "ingest": Ingest,
    "validate": Validate,
    "features": Features,
    "tune": Tune,
    "train": Train,
    "evaluate": Evaluate,
    "register": Register,
    "promote": Promote,
}
_MOST_OF_NAME: Final = 238
"""Characters. Airflow takes 250 of a DAG's id, and ``NAME.experiments`` is one."""
_MOST_OF_TAG: Final = 100
"""Characters that Airflow takes of a DAG's tag."""


def _at_most(most: int, why: str) -> AfterValidator:
    """
    :param most: characters of a text
    :param why: ends the message, with ``{}`` for how many a text has
    """

    def check(value: str) -> str:
        if len(value) > most:
            raise ValueError(f"{most} characters long at most, {why.format(len(value))}")
        return value

    return AfterValidator(check)


_SHORT_NAME: Final = _at_most(
    _MOST_OF_NAME, "and is {}: Airflow takes 250 of a DAG's id, and the one of its experiments is NAME.experiments"
)
_SHORT_TAG: Final = _at_most(_MOST_OF_TAG, "as Airflow stores it, and is {}")


class Pipeline(Section):
    """One ``*.pipeline.yaml``."""

    pipeline: Annotated[Name, _SHORT_NAME]
    """DAG id, dataset name and model name."""
    team: TeamName | None = None
    """Whose it is, of the teams that share the deployment; None: the deployment's own."""
    description: str = ""
    owner: str = "mlops"
    tags: list[Annotated[str, _SHORT_TAG]] = []
    schedule: str | None = None
    """Cron expression; None: only when triggered."""
    timezone: TimeZone = "UTC"
    """IANA name; the schedule and the calendar days of the data are in this zone."""
    start_date: date
    end_date: date | None = None
    retries: int = Field(default=2, ge=1)
    """At least 1: a killed process is retried, and a deferred task needs it."""
    retry_delay_seconds: float = Field(default=10, gt=0)
    """Doubles from try to try."""

    launcher: Annotated[str, AfterValidator(LAUNCHERS.check_named)] | None = None
    """How the steps run: ``process`` of Airflow's worker, Kubernetes ``pod``, or by a launcher of another package: the
    name of its entry point, or ``package.module:Class``. None: the deployment's choice."""
    pods: dict[Place, Pods] = {}
    """Settings of the pods, by step, and under ``all`` those of every step."""
    launcher_settings: dict[Place, dict[str, Json]] = {}
    """Settings of another package's launcher, by step, and under ``all`` those of every step."""

    notify: list[Notify] = []
    """Whom to tell of what happens to its runs, and how."""
    deadline_hours: float | None = Field(default=None, gt=0, le=MOST_HOURS, validate_default=True)
    """
    When a run is ``late``: hours from when it is due, by which it must have succeeded. None: never, but for entries of
    ``notify`` with ``late_hours``.
    """

    ingest: Ingest
    # pydantic's BaseModel has a deprecated method of that name.
    validate_: Validate = Field(alias="validate")
    features: Features
    train: Train
    tune: Tune | None = None
    """None: the training's settings are as they stand."""
    evaluate: Evaluate
    register_: Register = Field(alias="register")
    promote: Promote = Promote()

    @property
    def start(self) -> datetime:
        """Midnight in its zone, in which Airflow takes the DAG's times."""
        return datetime.combine(self.start_date, time(), ZoneInfo(self.timezone))

    def default_args(self) -> dict[str, Any]:
        """Of the tasks, for Airflow."""
        return {
            "owner": self.owner,
            "retries": self.retries,
            "retry_delay": timedelta(seconds=self.retry_delay_seconds),
            "retry_exponential_backoff": 2.0,
        }

    def launcher_settings_of(self, step: str) -> dict[str, Any]:
        """What the file says of how another package's launcher runs a step."""
        return of_step({str(place): given for place, given in self.launcher_settings.items()}, step)

    def pods_of(self, step: str) -> dict[str, Any]:
        """What the file says of a step's pods, and nothing of the defaults."""
        given: dict[str, dict[str, Any]] = {
            place: pods.model_dump(mode="json", exclude_unset=True) for place, pods in self.pods.items()
        }
        return of_step(given, step)

    def recipes(self) -> list[str]:
        """The recipes' folders, ``include/<name>``, whose code or queries the steps run."""
        return recipe_folders(self.model_dump(mode="json"))

    @field_validator("deadline_hours")
    @classmethod
    def _told_of_what_is_late(cls, value: float | None, info: ValidationInfo) -> float | None:
        notify: list[Notify] = info.data.get("notify", [])
        told = [entry for entry in notify if "late" in entry.events and entry.late_hours is None]
        if value is not None and not told:
            raise ValueError("given with an entry of notify that is told of late; nobody would hear of it")
        if value is None and any({*entry.events} != {*EVENTS} for entry in told):
            raise ValueError("a number of hours: notify names late, and without it no run is")
        return value

    @field_validator("validate_")
    @classmethod
    def _volume_within_window(cls, value: Validate, info: ValidationInfo) -> Validate:
        ingest = info.data.get("ingest")
        against = value.volume.against if value.volume is not None else None
        if ingest is not None and against is not None and against >= ingest.window > 1:
            window = counted(ingest.window, ingest.grain)
            raise ValueError(f"content with a window of {window}: make volume.against smaller than that")
        return value

    @field_validator("tune")
    @classmethod
    def _space_of_the_training(cls, value: Tune | None, info: ValidationInfo) -> Tune | None:
        if value is None or "train" not in info.data:
            return value
        return fitted(value, info.data["train"])

    @field_validator("evaluate")
    @classmethod
    def _metric_of_the_objective(cls, value: Evaluate, info: ValidationInfo) -> Evaluate:
        if "train" not in info.data:
            return value
        objective, settings = info.data["train"].objective, info.data["train"].objective_settings
        check_fitting([value.metric, *value.metrics], objective, settings)
        if value.fairness and known_kind(objective, settings) not in (None, "logit"):
            raise ValueError(f"without fairness: it compares predicted classes, and the objective is {objective}")
        return value

    @field_validator("register_")
    @classmethod
    def _same_contest(cls, value: Register, info: ValidationInfo) -> Register:
        judged = info.data.get("evaluate")
        if judged and judged.registered_model != value.registered_model:
            raise ValueError(f"for the model of evaluate: {judged.registered_model}")
        return value

    @field_validator("launcher_settings")
    @classmethod
    def _settings_of_the_launcher(
        cls, value: dict[Place, dict[str, Any]], info: ValidationInfo
    ) -> dict[Place, dict[str, Any]]:
        # A launcher by its import path is imported by its tasks, once it is known that the team may name it.
        if "launcher" in info.data and ":" not in (info.data["launcher"] or ""):
            for place, settings in value.items():
                check_settings(info.data["launcher"], settings, f"those of the launcher: {place}")
        return value

    @field_validator("schedule")
    @classmethod
    def _valid_cron(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if not croniter.is_valid(value):
            raise ValueError('a cron expression such as "0 0 * * *"')
        try:
            croniter(value).get_next()
        except CroniterBadDateError:  # as Airflow would find when it stores the DAG
            raise ValueError("a cron expression of days that there are: none of its months has such a day") from None
        return value
