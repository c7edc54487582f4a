"""What all steps share: settings, wiring, launching, and the meaning of the outcome."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowSkipException

from mlops.contract.code_files import code_digest, files_told
from mlops.contract.refs import Ref, RefError, ref_of
from mlops.contract.section import NAME_PATTERN, Section, SpecError, check_section
from mlops.contract.settings import decisive, flat_settings, replaced_settings
from mlops.contract.step import STEPS, Failure, StepInput, run_key
from mlops_provider.connections import secret_environment
from mlops_provider.deployment import Deployment, tenant_of
from mlops_provider.exceptions import StepFailedError, StepLostError, StepOutageError, StepRetryableError
from mlops_provider.launcher_names import check_launcher, check_settings
from mlops_provider.launchers.base import DeferrableLauncher, Launch, Launcher, Outcome, StepTask
from mlops_provider.launchers.named import launcher_class
from mlops_provider.links import ReportLink, report_url
from mlops_provider.notifiers.named import check_notifiers
from mlops_provider.notify_spec import Event, notified
from mlops_provider.operator_keys import CODE_KEY, FAILURE_KEY, NEWS, NEWS_KEY
from mlops_provider.operators.adopted import handed_on
from mlops_provider.operators.callbacks import count_failed, count_tried_again, say_why, telling
from mlops_provider.operators.failed_nodes import failed_nodes, note_failed_nodes
from mlops_provider.operators.ownership import check_team
from mlops_provider.operators.runs import Asked, refuse_others, waiting_shown
from mlops_provider.operators.signatures import name_settings
from mlops_provider.operators.wiring import check_wiring
from mlops_provider.pod_spec import Pods
from mlops_provider.telemetry import tell_result

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mlops_provider.patience import Patience


class StepOperator(BaseOperator):
    """
    Run one step in its own runtime and return its ref.

    The settings of the step (see its section in :mod:`mlops_provider.spec`) are keyword arguments of the operator.

    :param upstream: the ref this step takes: another operator's output (templated)
    :param pipeline: names the dataset, the runs and their place in the store; the DAG's id if not given
    :param team: whose it is, of the teams that share the deployment (``[mlops] teams_file``); the deployment's own if
        not given
    :param parameters: settings that DAG params of the same name override for one run; ``train.epochs`` is overridden by
        ``epochs``
    :param only_parameters: fail a run that was triggered with what is no param of its DAG: a mistyped name would train
        with the usual value
    :param launcher: ``process``, ``pod``, or one of another package: its entry point's name, or
        ``package.module:Class``; the deployment's (``[mlops] launcher``) if not given
    :param launcher_settings: settings of another package's launcher
    :param pods: settings of the step's pods, see :class:`mlops_provider.pod_spec.Pods`; for ``launcher="pod"``
    :param deferrable: with pods: wait without holding a worker, where there are retries
    :param infrastructure_patience: how long a try waits for MLflow, the store or the Kubernetes API, in all; the
        deployment's (``[mlops] infrastructure_patience``) if not given
    :param notify: whom to tell of what happens to the task, see :class:`mlops_provider.notify_spec.Notify`
    :param settings: (templated) filled from the keyword arguments
    """

    step: ClassVar[str]
    section: ClassVar[type[Section]]
    pods_of: ClassVar[str | None] = None
    """The step whose pods in the platform's default file are meant; its own where None."""
    success: ClassVar[Event | None] = None
    """What people are told of when it has succeeded."""
    template_fields: Sequence[str] = ("upstream", "settings")
    template_fields_renderers: ClassVar[dict[str, str]] = {"upstream": "json", "settings": "json"}
    ui_color = "#e8f4f0"
    sections: Mapping[str, Any] = MappingProxyType({})
    """As in :attr:`StepInput.sections`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "step"):  # what several steps' operators share
            return
        name_settings(cls, cls.section)

    def __init__(
        self,
        *,
        upstream: XComArg | Mapping[str, Any] | str | None = None,
        pipeline: str | None = None,
        team: str | None = None,
        parameters: Sequence[str] = (),
        only_parameters: bool = False,
        launcher: str | None = None,
        launcher_settings: Mapping[str, Any] | None = None,
        pods: Mapping[str, Any] | None = None,
        deferrable: bool = True,
        infrastructure_patience: timedelta | None = None,
        notify: Sequence[Mapping[str, Any]] = (),
        # Named here, not set in kwargs, so that a DAG's default_args go before them.
        on_failure_callback: Any = None,
        on_retry_callback: Any = None,
        on_skipped_callback: Any = None,
        on_success_callback: Any = None,
        # A killed process is retried, and so is whatever may pass; what cannot is not (StepFailedError).
        retries: int = 2,
        retry_delay: timedelta = timedelta(seconds=10),
        retry_exponential_backoff: float = 2.0,
        max_retry_delay: timedelta = timedelta(minutes=10),
        **kwargs: Any,
    ) -> None:
        settings = {name: kwargs.pop(name) for name in list(kwargs) if name in self.section.model_fields}
        place = f"task {kwargs.get('task_id')!r}"
        self.notify = notified(notify, place)
        tenant = tenant_of(team)
        for option, own in tenant.slots().items():
            if kwargs.setdefault(option, own) != own:
                raise SpecError(f"{place}: {option} must be {own!r}, the one of team {team!r}, got {kwargs[option]!r}")
        super().__init__(
            on_failure_callback=telling(self.notify, "failed", on_failure_callback, say_why, count_failed),
            on_retry_callback=telling(self.notify, None, on_retry_callback, say_why, count_tried_again),
            on_skipped_callback=telling(self.notify, "stopped", on_skipped_callback),
            on_success_callback=telling(self.notify, self.success, on_success_callback),
            retries=retries,
            retry_delay=retry_delay,
            retry_exponential_backoff=retry_exponential_backoff,
            max_retry_delay=max_retry_delay,
            **kwargs,
        )
        if pipeline is None and not self.has_dag():
            raise ValueError(f"task {self.task_id!r} is outside a DAG: give it pipeline=")
        self.pipeline: str = pipeline or self.dag.dag_id
        # It is a folder of the store and part of the report's address.
        if not re.fullmatch(NAME_PATTERN, self.pipeline):
            raise ValueError(
                f"task {self.task_id!r}: a pipeline's name is lower-case letters, digits and underscores, got "
                f"{self.pipeline!r}; give it pipeline="
            )
        self.settings = check_section(self.section, settings, f"task {self.task_id!r}").model_dump(mode="json")
        self.parameters = tuple(parameters)
        known = {*self.section.model_fields, *flat_settings(self.settings)}
        for name in self.parameters:
            if name not in known:
                raise ValueError(f"task {self.task_id!r}: {self.step} has no setting {name!r} to override")
        self.only_parameters = only_parameters
        self.launcher = launcher
        check_launcher(launcher, place)
        self.launcher_settings = dict(launcher_settings or {})
        self.deferrable = deferrable
        self.infrastructure_patience = infrastructure_patience
        self.pods = dict(pods or {})
        check_section(Pods, self.pods, f"task {self.task_id!r}: pods")
        self.upstream = check_wiring(self.step, self.task_id, upstream)
        self.team = team
        check_team(self, tenant_of(team, self.dag.fileloc if self.has_dag() else None))
        # Not before: it imports the launcher.
        check_settings(launcher, self.launcher_settings, f"{place}: launcher_settings")
        check_notifiers(self.notify, notify, place)
        self.links: dict[str, str] = {}
        self.news = ""
        self._launcher: Launcher | None = None
        self._patience: Patience | None = None
        self.failure: Failure | None = None

    @classmethod
    def produces(cls) -> type[Ref]:
        """Class of the ref that the step returns."""
        return STEPS[cls.step].produces

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        """Files and folders, relative to the project folder, whose content decides what the step does."""
        return []

    def gang(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of the :class:`Launch` that ask for torchrun; none for a plain process."""
        return {}

    def connections(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """
        Airflow connections that the step's process gets, by the setting that names each. What they hold is neither
        kept nor part of the run key.
        """
        return {}

    def asked_settings(self, settings: dict[str, Any], asked: Asked, deployment: Deployment) -> dict[str, Any]:
        """Return the settings, by what a run asks for beside its DAG's parameters."""
        return settings

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What the step's process is told: the settings, as they were checked."""
        return dict(settings)

    def baselines(self, deployment: Deployment) -> dict[str, Ref]:
        """Refs of other runs that the step holds its result against, by name. Not part of the run key."""
        return {}

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        """Called with the committed ref, before it is returned: emit assets, set links."""

    def models(self) -> list[str]:
        """Registered models that the task names."""
        return [name] if (name := self.settings.get("registered_model")) is not None else []

    def approvers(self) -> list[str]:
        """Users who may answer the task's question."""
        return []

    def execute(self, context: Context) -> dict[str, Any]:
        deployment, patience = self._deployment(), self.patience(context)
        if (hand_on := handed_on(self, context, deployment)) is not None:
            return patience.with_work(hand_on)
        return patience.with_work(lambda: self._conclude(self._launch(context, deployment), context, deployment))

    def resume(self, context: Context, event: Mapping[str, Any], launcher: str, waited: float = 0.0) -> dict[str, Any]:
        """
        Called when a step that ran on without a worker has ended, or could not be started.

        :param launcher: that started it
        :param waited: seconds that this try has waited for what was away
        """
        from mlops_provider.patience import store_errors

        deployment, patience = self._deployment(), self.patience(context, waited)
        started_by = cast(type[DeferrableLauncher], launcher_class(launcher))

        def read() -> Outcome:
            try:
                with store_errors(deployment.store, f"{self.step} cannot read its outcome"):
                    return started_by.finish(event, deployment)
            except SpecError as error:
                raise StepFailedError(str(error)) from error

        ended = [patience.with_work(read)]
        # Where the step found something away, it is launched again, which leaves this process.
        return patience.with_work(
            lambda: self._conclude(ended.pop() if ended else self._launch(context, deployment), context, deployment)
        )

    def patience(self, context: Context, waited: float = 0.0) -> Patience:
        """What waits for services that are away, in this try."""
        from mlops_provider.patience import Patience

        if self._patience is None:
            self._patience = Patience(self._deployment(), self.log.warning, waiting_shown(context), waited)
        return self._patience

    def _deployment(self) -> Deployment:
        try:
            deployment = Deployment.load(self.team, self.dag.fileloc if self.has_dag() else None)
            check_team(self, deployment.tenant)
        except SpecError as error:
            raise StepFailedError(str(error)) from error
        if self.infrastructure_patience is None:
            return deployment
        return replace(deployment, infrastructure_patience=self.infrastructure_patience)

    def _launch(self, context: Context, deployment: Deployment) -> Outcome:
        """Run the step, or leave this process while it runs elsewhere."""
        from mlops_provider.patience import store_errors

        try:
            launch = self.launch(Asked.of(context, self.upstream), deployment)
            if launch.input.code_paths:
                files = files_told(deployment.home, launch.input.code_paths)
                context["ti"].xcom_push(key=CODE_KEY, value=files)
            name = self.launcher or deployment.launcher
            index = -1 if (index := context["ti"].map_index) is None else index
            launcher = launcher_class(name).of(
                self.step_task(context["run_id"], index, failed_nodes(context)), deployment
            )
            # A trigger that fires at once can overtake its own deferral, which Airflow takes for a failure.
            if self.deferrable and self.retries and isinstance(launcher, DeferrableLauncher):
                # Without a timeout: Airflow would fail the task, and what runs would run on.
                waited = self.patience(context).waited
                trigger = launcher.trigger(launch, self.connections(launch.input.config))
                self.defer(trigger=trigger, method_name="resume", kwargs={"launcher": name, "waited": waited})
            self._launcher = launcher
            with store_errors(deployment.store, f"{self.step} cannot read its outcome"):
                return launcher.run(launch, self.log.info)
        except (SpecError, RefError) as error:  # a param, an input or a setting that no retry makes right
            raise StepFailedError(str(error)) from error

    def launch(self, asked: Asked, deployment: Deployment) -> Launch:
        """
        What a launcher is to do for a run.

        :raises SpecError: where a parameter, an input or a setting is wrong
        :raises RefError: where the input is no ref that the step takes
        """
        document = self._document(asked, deployment)
        return Launch(
            input=document,
            runtime=STEPS[self.step].runtime,
            environment=secret_environment(self.step, self.connections(document.config), deployment),
            **self.gang(document.config),
        )

    def _conclude(self, outcome: Outcome, context: Context, deployment: Deployment) -> dict[str, Any]:
        if outcome.failed_nodes:
            note_failed_nodes(outcome.failed_nodes, context)
        if outcome.result is None:
            raise StepLostError(f"{self.step} ended without a result: {outcome.status}")
        if isinstance(outcome.result, Failure):
            raise self._failure(outcome.result, context)
        ref = self.produces().from_wire(outcome.result.to_wire())
        self._link_report(ref)
        tell_result(ref, self.metric_tags)
        # Apart, for what the step has done is not to be asked for again.
        self.patience(context).with_work(lambda: self.succeeded(ref, context, deployment))
        return ref.to_wire()

    def on_kill(self) -> None:
        if self._launcher is not None:
            self._launcher.cancel()

    def _document(self, asked: Asked, deployment: Deployment) -> StepInput:
        if self.only_parameters:
            refuse_others(asked.given, self.dag.params)
        named = ((name, name.rpartition(".")[2]) for name in self.parameters)
        overrides = {name: asked.params[key] for name, key in named if key in asked.params}
        settings = self.asked_settings(replaced_settings(self.settings, overrides), asked, deployment)
        section = check_section(self.section, settings, f"task {self.task_id!r}")
        config = self.config(section.model_dump(mode="json"))
        ref = ref_of(kinds, asked.upstream) if (kinds := STEPS[self.step].consumes) else None
        end = asked.interval[1]
        code_paths = self.code_paths(config)
        code = code_digest([asked.project(deployment.home) / path for path in code_paths])
        key = run_key(
            self.step,
            end.isoformat(),
            str(self.dag.timezone),
            decisive(config, self.section.operational),
            ref,
            code,
        )
        identity = asked.identity(self.pipeline, key, str(self.dag.timezone), asked.dag_id or self.dag_id, self.task_id)
        return StepInput(
            step=self.step,
            run=identity,
            config=config,
            ref=ref,
            baselines=self.baselines(deployment),
            sections=self.sections,
            code_paths=tuple(code_paths),
            code=code,
            recipes=asked.sent.recipes if asked.sent else {},
        )

    def step_task(
        self, run_id: str, map_index: int = -1, failed_nodes: Mapping[str, int] = MappingProxyType({})
    ) -> StepTask:
        """Return what a launcher is told of the task instance. For the parameters see :class:`StepTask`."""
        return StepTask(
            dag_id=self.dag_id,
            run_id=run_id,
            task_id=self.task_id,
            map_index=map_index,
            team=self.team,
            settings=self.launcher_settings,
            pods=self.pods,
            pods_of=self.pods_of or self.step,
            timeout_seconds=self.execution_timeout.total_seconds() if self.execution_timeout else None,
            failed_nodes=failed_nodes,
        )

    def _failure(self, failure: Failure, context: Context) -> StepFailedError | StepRetryableError:
        if report := failure.details.get("report"):
            self.links[ReportLink.name] = report_url(report)
        if failure.outage is not None:
            return StepOutageError(failure.message, failure.outage)
        self.tell(failure, context)
        return (StepRetryableError if failure.retryable else StepFailedError)(failure.message)

    @property
    def metric_tags(self) -> dict[str, str]:
        """Whose a metric is that the step tells, see :mod:`mlops_provider.telemetry`."""
        return {"pipeline": self.pipeline, "step": self.step} | ({"team": self.team} if self.team else {})

    def say(self, news: str, context: Context, *, is_told: bool = True) -> None:
        """Leave a sentence in the note of the run, and in a message where people are to be told."""
        self.news = news if is_told else ""
        context["ti"].xcom_push(key=NEWS_KEY, value={NEWS: news})

    def skipped(self, why: str, context: Context, *, is_told: bool = True) -> AirflowSkipException:
        """Return what to raise where nothing goes into production. For the parameters see :meth:`say`."""
        self.say(why, context, is_told=is_told)
        return AirflowSkipException(why)

    def tell(self, failure: Failure, context: Context) -> None:
        """Say why the task fails, for programs: the first one that is told stays."""
        if self.failure is None:
            context["ti"].xcom_push(key=FAILURE_KEY, value=asdict(failure))
            self.failure = failure

    def _link_report(self, ref: Ref) -> None:
        if (report := ref.artifacts.get("report")) is not None:
            self.links[ReportLink.name] = report_url(report.key)
