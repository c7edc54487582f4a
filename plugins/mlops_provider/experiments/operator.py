from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from mlops.contract.results import verdict
from mlops.contract.section import SpecError
from mlops.contract.step import Failure
from mlops_provider.exceptions import StepFailedError, StepLostError, StepRetryableError
from mlops_provider.experiments.names import ASKED_AT, STEPS, person_of
from mlops_provider.links import ReportLink, TrackingLink, report_url, run_url
from mlops_provider.operator_keys import FAILURE_KEY
from mlops_provider.operators.callbacks import say_why
from mlops_provider.operators.runs import refuse_others, waiting_shown

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mlops.contract.refs import Ref
    from mlops_provider.experiments.line import Line
    from mlops_provider.experiments.results import Results

STEPS_KEY = "steps"
"""XCom: what each step has made so far, in the order in which they ended."""


class ExperimentOperator(BaseOperator):
    """
    Try a pipeline out, as ``mlops run`` does in a terminal: what is committed is found, the rest runs, and nothing is
    registered. A retry goes on where the try before it ended.

    Returns what ``mlops run --json`` prints: the trainings with metrics, verdict and addresses.

    :param file: of the pipeline
    :param team: whose it is
    """

    operator_extra_links = (ReportLink(), TrackingLink())
    ui_color = "#f0e8f4"

    def __init__(self, *, file: str, team: str | None = None, **kwargs: Any) -> None:
        super().__init__(on_failure_callback=[say_why], on_retry_callback=[say_why], **kwargs)
        self.file = file
        self.team = team
        self.links: dict[str, str] = {}
        self._line: Line | None = None
        self._is_killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        # It is needed where it runs only, and imports all steps.
        from mlops_provider.deployment import Deployment
        from mlops_provider.experiments.asked import Experiment
        from mlops_provider.experiments.line import Line
        from mlops_provider.experiments.request import Request, past_instant
        from mlops_provider.experiments.sent_recipes import sent_recipes
        from mlops_provider.experiments.specs import refuse_changed
        from mlops_provider.patience import Patience

        run = context["dag_run"]
        user = run.triggering_user_name or ""
        try:
            try:
                refuse_others(run.conf or {}, self.dag.params)
                request = Request.of_params(context["params"])
                # As of when it was asked for: a retry is about the same data.
                refuse_changed(Path(self.file), context["params"][STEPS])
                asked_at = context["params"][ASKED_AT]
                now = run.run_after if asked_at is None else past_instant(asked_at, ASKED_AT)
                experiment = Experiment.of(Path(self.file), request, person_of(user), now)
                deployment = Deployment.load(self.team, self.file)
            except SpecError as error:
                raise StepFailedError(str(error)) from error

            def work() -> tuple[Experiment, Results]:
                try:
                    settled = experiment.with_snapshot(deployment)
                except SpecError as error:
                    raise StepFailedError(str(error)) from error
                with sent_recipes(settled.place, settled.recipes, deployment) as sent:
                    self._line = Line(
                        experiment=settled,
                        deployment=deployment,
                        listener=_Told(self, context),
                        run_id=context["run_id"],
                        dag_id=self.dag_id,
                        user=user,
                        sent=sent,
                    )
                    if self._is_killed:  # before there was a line to stop
                        self._line.stop()
                    return settled, self._line.run()

            settled, results = Patience(deployment, self.log.warning, waiting_shown(context)).with_work(work)
        except (StepFailedError, StepRetryableError, StepLostError) as error:
            may_pass = not isinstance(error, StepFailedError)
            failure = Failure(type=type(error).__name__, message=str(error), retryable=may_pass, details={})
            context["ti"].xcom_push(key=FAILURE_KEY, value=asdict(failure))
            raise
        for training in results.trainings:
            seed = f"seed {training.checkpoint.seed}: " if len(results.trainings) > 1 else ""
            self.log.info("%s%s", seed, ", ".join(f"{name} {value:.4f}" for name, value in training.metrics.items()))
            if (report := training.report) is not None:
                self.log.info("%s%s: %s", seed, verdict(report.passed), report.reason)
            self.links[TrackingLink.name] = run_url(deployment, training.checkpoint.tracking_run)
        return results.document(settled, deployment, in_airflow=True)

    def on_kill(self) -> None:
        self._is_killed = True
        if self._line is not None:
            self._line.stop()


@dataclass
class _Told:
    """Implements :class:`mlops_provider.experiments.line.Listener`: by the task's log, XComs and links."""

    operator: ExperimentOperator
    context: Context
    _ended: list[dict[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begins(self, what: str) -> None:
        self.operator.log.info("%s begins", what)

    def line(self, what: str, line: str) -> None:
        self.operator.log.info("%s | %s", what, line)

    def ended(self, what: str, ref: Ref) -> None:
        self.operator.log.info("%s is committed at %s", what, ref.place)
        if (report := ref.artifacts.get("report")) is not None:
            self.operator.links[ReportLink.name] = report_url(report.key)
        with self._lock:
            self._ended.append({"step": what, "place": ref.place})
            self.context["ti"].xcom_push(key=STEPS_KEY, value=self._ended)

    def failed(self, what: str, message: str) -> None:
        self.operator.log.warning("%s failed: %s", what, message)
