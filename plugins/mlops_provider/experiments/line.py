"""The steps of a pipeline one after the other, each in its own process, as Airflow's tasks run them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import obstore
import tenacity
from airflow.sdk.definitions.mappedoperator import MappedOperator

from mlops.contract.refs import CheckpointRef, Ref, RefError, ReportRef
from mlops.contract.section import SpecError
from mlops.contract.step import EXPERIMENT_STEPS, Failure, StepInput
from mlops_provider.committed import lacking, read_committed
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepLostError, StepOutageError, StepRetryableError
from mlops_provider.experiments.alone import alone_at
from mlops_provider.experiments.asked import Experiment
from mlops_provider.experiments.budget import Budget
from mlops_provider.experiments.results import Results, Training, address
from mlops_provider.launchers.base import Launch, Launcher, Outcome
from mlops_provider.launchers.kubernetes.api import ApiError, UnreachableError
from mlops_provider.launchers.named import launcher_class
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.runs import TERMINAL, Asked, SentRecipes
from mlops_provider.operators.tune import BUDGET_SPENT
from mlops_provider.patience import store_errors

_WAIT_SECONDS: Final = 0.2
_STOP_SECONDS: Final = 4.5
"""Longer than each launcher takes to cancel; below the 5 s after which Airflow's supervisor kills the task itself."""


class _NotBegunError(Exception):
    """A trial has not begun: the search may cost no more."""


class Listener(Protocol):
    """Is told what happens, from any thread."""

    def begins(self, what: str) -> None: ...

    def line(self, what: str, line: str) -> None: ...

    def ended(self, what: str, ref: Ref) -> None: ...

    def failed(self, what: str, message: str) -> None:
        """A trial, without which the search goes on."""


@dataclass(kw_only=True)
class Line:
    """Runs the steps of an experiment."""

    experiment: Experiment
    deployment: Deployment
    listener: Listener
    run_id: str = field(default_factory=lambda: f"{TERMINAL}{datetime.now(UTC).isoformat(timespec='milliseconds')}")
    dag_id: str = ""
    """Of the run, where Airflow has one; empty: the pipeline's."""
    user: str = ""
    """Who started it, as Airflow knows them; empty in a terminal."""
    sent: SentRecipes | None = None
    """Recipes in place of those of the project."""
    _running: set[Launcher] = field(default_factory=set)
    _stopped: bool = False

    def run(self) -> Results:
        """
        Run the steps that are asked for.

        :raises StepFailedError: where one of them failed, and doing it again cannot help
        :raises StepRetryableError: where it may
        :raises StepLostError: where the process of one ended without a word
        """
        prepared = self._prepare()
        if EXPERIMENT_STEPS.index(self.experiment.until) < EXPERIMENT_STEPS.index("train"):
            return Results(prepared=prepared, trainings=[])
        seeds: Sequence[int | None] = self.experiment.seeds or [None]
        return Results(prepared=prepared, trainings=[self._train(prepared, seed) for seed in seeds])

    def stop(self) -> None:
        """End what runs, all at once, and let nothing begin. A signal's handler may call it."""
        self._stopped = True
        ending = [threading.Thread(target=launcher.cancel, daemon=True) for launcher in list(self._running)]
        deadline = time.monotonic() + _STOP_SECONDS
        for each in ending:
            each.start()
        for each in ending:
            each.join(max(0.0, deadline - time.monotonic()))

    def _prepare(self) -> Ref:
        """Run the steps before the training, or as many as are asked for, and return what the last of them made."""
        ref = self.experiment.snapshot
        if ref is not None:
            self.listener.begins("ingest")
            self.listener.ended("ingest", ref)
        before = EXPERIMENT_STEPS[: EXPERIMENT_STEPS.index("train")]
        for step in before[: EXPERIMENT_STEPS.index(self.experiment.until) + 1]:
            if step == "tune" and self.experiment.pipeline.tune is None:
                continue
            if step == "ingest" and ref is not None:  # it is given what that would take
                continue
            if step == "tune":
                assert ref is not None, "it is not the first"
                self._trials(ref)
            ref = self.step(step, ref)
        assert ref is not None, "there is a first step"
        return ref

    def step(self, step: str, upstream: Ref | None, *, seed: int | None = None) -> Ref:
        """
        Run one step.

        :param seed: of the training, where there are several
        """
        what = step if seed is None else f"{step} seed {seed}"
        operator = self.experiment.dag.get_task(step)
        assert isinstance(operator, StepOperator), "the pipeline's own"
        outcome = self._run(what, operator, upstream, {} if seed is None else {"seed": seed})
        ref = made(what, outcome, self.deployment, bool(self.dag_id))
        self.listener.ended(what, ref)
        return ref

    def _train(self, prepared: Ref, seed: int | None) -> Training:
        checkpoint = self.step("train", prepared, seed=seed)
        assert isinstance(checkpoint, CheckpointRef), "what this step commits"
        report = self.step("evaluate", checkpoint, seed=seed) if self.experiment.until == "evaluate" else None
        assert report is None or isinstance(report, ReportRef), "what this step commits"
        return Training(checkpoint=checkpoint, report=report)

    def _trials(self, features: Ref) -> None:
        """
        Run the trials of a search, as many at once as the pipeline says; one that succeeds is enough.

        Before each that begins it looks how many there may be: somebody may have changed that meanwhile.

        :raises StepOutageError: where a service was away that a trial needs: the best of the others would pass for the
            best of all
        """
        asked_for, budget, parallel = self.experiment, Budget(), self.experiment.search.parallel
        outage: StepOutageError | None = None
        ended: dict[int, Exception | None] = {}
        running: dict[Future[Exception | None], tuple[int, Budget]] = {}
        with ThreadPoolExecutor(parallel) as pool:
            try:
                while True:
                    if (now := self._budget(budget)) != budget:
                        self.listener.line("tune", f"the search: {now}")
                        ended = {n: error for n, error in ended.items() if not isinstance(error, _NotBegunError)}
                        begun = {*ended, *(number for number, _ in running.values())}
                        last = max([*begun, self._last_trial(now, features)])
                        budget, self.experiment = now, asked_for.with_budget(now, last + 1)
                    begun = {*ended, *(number for number, _ in running.values())}
                    waiting = [n for n in range(self.experiment.search.num_trials) if n not in begun]
                    for number in waiting[: parallel - len(running)] if outage is None else ():
                        running[pool.submit(self._trial, number, features)] = number, budget
                    if not running:
                        break
                    for each in wait(running, return_when=FIRST_COMPLETED).done:
                        number, given = running.pop(each)
                        error = each.result()
                        if given == budget or not isinstance(error, _NotBegunError):
                            ended[number] = error
                        if isinstance(error, StepOutageError):
                            outage = error
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._cancel()
                raise
        if outage is not None:
            raise outage
        if all(error is not None and not isinstance(error, _NotBegunError) for error in ended.values()):
            raise next(error for error in ended.values() if error is not None)

    def _trial(self, number: int, features: Ref) -> Exception | None:
        """
        Run a trial; one that is lost, or fails for a reason that may pass, is tried again as often as Airflow would.

        :return: why it failed, or has not begun; None where it has ended well
        """
        what, operator = f"trial {number}", self._trial_operator(number)

        def run() -> Exception | None:
            outcome = self._run(what, operator, features, {}, number)
            if isinstance(outcome.result, Failure) and outcome.result.type == BUDGET_SPENT:
                self.listener.line(what, outcome.result.message)
                return _NotBegunError(outcome.result.message)
            self.listener.ended(what, made(what, outcome, self.deployment, bool(self.dag_id)))
            return None

        retrying = tenacity.Retrying(
            # Who waits for a service that is away waits for it before the search goes on, not for each trial.
            retry=tenacity.retry_if_exception(lambda error: _may_pass(error) and not self._stopped),
            stop=tenacity.stop_after_attempt((operator.retries or 0) + 1),
            wait=_pause(operator),
            before_sleep=lambda state: self.listener.line(what, _tried_again(state)),
            sleep=lambda seconds: self._sleep(what, seconds),
            reraise=True,
        )
        try:
            return retrying(run)
        except (StepFailedError, StepRetryableError, StepLostError) as error:
            self.listener.failed(what, str(error))
            return error

    def _sleep(self, what: str, seconds: float) -> None:
        """:raises StepLostError: where the whole run is being ended"""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._refuse_to_begin(what)
            time.sleep(min(left, _WAIT_SECONDS))

    def _budget(self, known: Budget) -> Budget:
        """
        Return what the search may cost by now.

        :param known: what it was, which holds where the store does not answer
        """
        if not self.dag_id:  # in a terminal there is nobody to say so
            return known
        try:
            with store_errors(self.deployment.store, "the search's budget cannot be looked up"):
                store = store_of(self.deployment)
                return asyncio.run(Budget.read(store, self.experiment.place, self.run_id))
        except (StepFailedError, StepRetryableError, SpecError) as error:
            self.listener.line("tune", str(error))
            return known

    def _last_trial(self, budget: Budget, features: Ref) -> int:
        """
        Return the highest number of a trial that an earlier try of this run has begun, by what it has left in the
        store; -1: there is none.
        """
        widest = self.experiment.with_budget(budget.widest, self.experiment.search.num_trials)
        with store_errors(self.deployment.store, "the search's trials cannot be looked up"):
            store = store_of(self.deployment)
            for number in reversed(range(widest.search.num_trials)):
                launch = self._launch(self._trial_operator(number), features, {})
                if any(page for page in obstore.list(store, launch.input.place)):
                    return number
        return -1

    def _trial_operator(self, number: int) -> StepOperator:
        mapped = self.experiment.dag.get_task("tune_trial")
        assert isinstance(mapped, MappedOperator), "the search's trials"
        operator = mapped.unmap({"number": number})
        assert isinstance(operator, StepOperator), "one trial"
        return operator

    def _run(
        self, what: str, operator: StepOperator, upstream: Ref | None, params: Mapping[str, Any], map_index: int = -1
    ) -> Outcome:
        self.listener.begins(what)
        try:
            launch = self._launch(operator, upstream, params)
            name = operator.launcher or self.deployment.launcher
            if name != "process" and (made := self._made_by_the_pipeline(launch.input)) is not None:
                self.listener.line(what, f"{operator.step} is already committed at {made.place}: nothing to do")
                return Outcome(result=made, status="committed")
            # By what it does, not by this terminal: the same command finds a Job that a killed one has left.
            task = operator.step_task(f"{TERMINAL}{self.experiment.name}/{launch.input.run.run_key}", map_index)
            launcher = launcher_class(name).of(task, self.deployment)
            with alone_at(f"{self.deployment.store}/{launch.input.place}", self._waiting(what)):
                self._running.add(launcher)
                try:
                    self._refuse_to_begin(what)  # who stops it now finds the launcher
                    with store_errors(self.deployment.store, f"{what} cannot read its outcome"):
                        return launcher.run(launch, lambda line: self.listener.line(what, line))
                finally:
                    self._running.discard(launcher)
        except SpecError as error:
            raise StepFailedError(str(error)) from error
        except (ApiError, UnreachableError) as error:
            raise StepRetryableError(str(error)) from error

    def _launch(self, operator: StepOperator, upstream: Ref | None, params: Mapping[str, Any]) -> Launch:
        asked = Asked(
            upstream=None if upstream is None else upstream.to_wire(),
            interval=self.experiment.interval,
            run_id=self.run_id,
            dag_id=self.dag_id,
            user=self.user,
            experiment=self.experiment.name,
            sent=self.sent,
            params=params,
        )
        try:
            return operator.launch(asked, self.deployment)
        except (SpecError, RefError) as error:
            raise StepFailedError(str(error)) from error

    def _waiting(self, what: str) -> Callable[[], None]:
        said = False

        def wait() -> None:
            nonlocal said
            if not said:
                self.listener.line(what, "another run is doing this: waiting for it")
            said = True
            self._refuse_to_begin(what)
            time.sleep(_WAIT_SECONDS)

        return wait

    def _refuse_to_begin(self, what: str) -> None:
        """:raises StepLostError: where the whole run is being ended"""
        if self._stopped:
            raise StepLostError(f"{what} was not begun")

    def _made_by_the_pipeline(self, document: StepInput) -> Ref | None:
        """
        Find what a run of the pipeline has made of the same work: of a step that ran elsewhere the place of the
        experiment is read. A process on this machine finds it itself.
        """
        if document.step == "evaluate":  # a verdict is held against the champion of its own time
            return None

        async def find() -> Ref | None:
            store = store_of(self.deployment)
            ref = await read_committed(store, document.pipelines_place)
            return ref if ref is not None and not await lacking(store, ref) else None

        with store_errors(self.deployment.store, f"what {document.step} has made cannot be looked up"):
            return asyncio.run(find())

    def _cancel(self) -> None:
        """End what other threads run, and wait until it has ended."""
        while True:
            self.stop()
            if not self._running:
                return
            time.sleep(0.05)  # one that is about to start its process is found the next time


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, StepRetryableError | StepLostError) and not isinstance(error, StepOutageError)


def _pause(operator: StepOperator) -> tenacity.wait.wait_base:
    """As long as Airflow waits before it tries a task again."""
    first, most = operator.retry_delay, operator.max_retry_delay
    assert isinstance(first, timedelta), "as StepOperator takes it"
    assert isinstance(most, timedelta), "as StepOperator takes it"
    factor = operator.retry_exponential_backoff or 1
    return tenacity.wait_exponential(first.total_seconds(), most.total_seconds(), factor)


def _tried_again(state: tenacity.RetryCallState) -> str:
    assert state.outcome is not None, "it has failed"
    assert state.next_action is not None, "it will be tried again"
    return f"{state.outcome.exception()}; it is tried again in {state.next_action.sleep:.0f} s"


def made(what: str, outcome: Outcome, deployment: Deployment, in_airflow: bool = False) -> Ref:
    """
    Return what a step has committed.

    :param what: the step, for the message
    :param in_airflow: whether the message names Airflow's page of a report
    :raises StepLostError: where its process ended without a word
    :raises StepFailedError: where it failed, and doing it again cannot help
    :raises StepRetryableError: where it may
    """
    found = outcome.result
    if found is None:
        raise StepLostError(f"{what} ended without a result: {outcome.status}; what is committed stays")
    if not isinstance(found, Failure):
        return found
    message, report = found.message, found.details.get("report")
    if report is not None:
        message = message.replace(report, address(deployment, report, in_airflow))
    if found.outage is not None:
        raise StepOutageError(f"{what}: {message}", found.outage)
    raise (StepRetryableError if found.retryable else StepFailedError)(f"{what}: {message}")
