"""The steps of a pipeline one after the other, each in its own process, as Airflow's tasks run them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from airflow.sdk.configuration import conf
from airflow.sdk.definitions.mappedoperator import MappedOperator

from mlops.contract.refs import Ref, RefError
from mlops.contract.section import SpecError
from mlops.contract.step import Failure, StepInput
from mlops_provider.committed import lacking, read_committed
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepLostError, StepRetryableError
from mlops_provider.experiments.alone import alone_at
from mlops_provider.experiments.arguments import STEPS
from mlops_provider.experiments.asked import Experiment
from mlops_provider.launchers.base import Launcher, Outcome
from mlops_provider.launchers.kubernetes.api import ApiError, UnreachableError
from mlops_provider.launchers.named import launcher_class
from mlops_provider.links import report_url
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.runs import TERMINAL, Asked
from mlops_provider.operators.tune import BUDGET_SPENT
from mlops_provider.patience import store_errors

_WAIT_SECONDS: Final = 0.2


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
    _running: set[Launcher] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    def prepare(self) -> Ref:
        """
        Run the steps before the training, or as many as are asked for.

        :return: what the last of them made
        :raises StepFailedError: where one of them failed
        :raises StepLostError: where the process of one ended without a word
        """
        ref: Ref | None = None
        before = STEPS[: STEPS.index("train")]
        for step in before[: STEPS.index(self.experiment.until) + 1]:
            if step == "tune" and self.experiment.pipeline.tune is None:
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
        ref = made(what, outcome, self.deployment)
        self.listener.ended(what, ref)
        return ref

    def _trials(self, features: Ref) -> None:
        """Run the trials of a search, as many at once as the pipeline says; one that succeeds is enough."""
        mapped, tune = self.experiment.dag.get_task("tune_trial"), self.experiment.pipeline.tune
        assert isinstance(mapped, MappedOperator), "the search's trials"
        assert tune is not None, "there is a search"

        def trial(number: int) -> Exception | None:
            what = f"trial {number}"
            try:
                operator = mapped.unmap({"number": number})
                assert isinstance(operator, StepOperator), "one trial"
                outcome = self._run(what, operator, features, {}, number)
                if isinstance(outcome.result, Failure) and outcome.result.type == BUDGET_SPENT:
                    self.listener.line(what, outcome.result.message)
                    return None
                self.listener.ended(what, made(what, outcome, self.deployment))
            except (StepFailedError, StepRetryableError, StepLostError) as error:
                self.listener.failed(what, str(error))
                return error
            return None

        with ThreadPoolExecutor(tune.parallel) as pool:
            try:
                trials = [pool.submit(trial, number) for number in range(tune.num_trials)]
                found = [each.result() for each in trials]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._cancel()
                raise
        if all(found):
            raise next(error for error in found if error is not None)

    def _run(
        self, what: str, operator: StepOperator, upstream: Ref | None, params: Mapping[str, Any], map_index: int = -1
    ) -> Outcome:
        self.listener.begins(what)
        asked = Asked(
            upstream=None if upstream is None else upstream.to_wire(),
            interval=self.experiment.interval,
            run_id=self.run_id,
            experiment=self.experiment.name,
            params=params,
        )
        try:
            launch = operator.launch(asked, self.deployment)
            assert operator.launcher is not None, "the one that was asked for"
            if operator.launcher != "process" and (made := self._made_by_the_pipeline(launch.input)) is not None:
                self.listener.line(what, f"{operator.step} is already committed at {made.place}: nothing to do")
                return Outcome(result=made, status="committed")
            # By what it does, not by this terminal: the same command finds a Job that a killed one has left.
            task = operator.step_task(f"{TERMINAL}{self.experiment.name}/{launch.input.run.run_key}", map_index)
            launcher = launcher_class(operator.launcher).of(task, self.deployment)
            with alone_at(f"{self.deployment.store}/{launch.input.place}", self._waiting(what)):
                with self._lock:
                    self._refuse_to_begin(what)
                    self._running.add(launcher)
                try:
                    with store_errors(self.deployment.store, f"{what} cannot read its outcome"):
                        return launcher.run(launch, lambda line: self.listener.line(what, line))
                finally:
                    with self._lock:
                        self._running.discard(launcher)
        except (SpecError, RefError) as error:
            raise StepFailedError(str(error)) from error
        except (ApiError, UnreachableError) as error:
            raise StepRetryableError(str(error)) from error

    def _waiting(self, what: str) -> Callable[[], None]:
        said = False

        def wait() -> None:
            nonlocal said
            if not said:
                self.listener.line(what, "another terminal is doing this: waiting for it")
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
        """End what runs, and let nothing begin."""
        while True:
            with self._lock:
                self._stopped, running = True, list(self._running)
            if not running:
                return
            for launcher in running:
                launcher.cancel()
            time.sleep(0.05)  # one that is about to start its process is found the next time


def made(what: str, outcome: Outcome, deployment: Deployment) -> Ref:
    """
    Return what a step has committed.

    :param what: the step, for the message
    :raises StepLostError: where its process ended without a word
    :raises StepFailedError: where it failed
    """
    found = outcome.result
    if found is None:
        raise StepLostError(f"{what} ended without a result: {outcome.status}; give the same command again")
    if not isinstance(found, Failure):
        return found
    message, report = found.message, found.details.get("report")
    if report is not None:
        message = message.replace(report, address(deployment, report))
    raise StepFailedError(f"{what}: {message}")


def address(deployment: Deployment, key: str) -> str:
    """The address of a report: of its file, or of Airflow's page where the store is no folder of this machine."""
    airflow = conf.get("api", "base_url", fallback="")
    if deployment.store.startswith("file://") or not airflow:
        return f"{deployment.store}/{key}"
    return f"{airflow.rstrip('/')}{report_url(key)}"
