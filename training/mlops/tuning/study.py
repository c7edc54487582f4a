"""A study in its database: trials that begin, go on after a kill, report and end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

import optuna
from optuna.pruners import NopPruner
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from mlops.contract.refs import TrialRef
from mlops.contract.samplers import PRUNERS
from mlops.contract.sections.steps import TuneStep
from mlops.contract.sections.train import Train
from mlops.contract.settings import decisive
from mlops.contract.step import StepError, StepInput, run_key
from mlops.metrics.metric import load_metric
from mlops.tuning.space import NUMBER, distributions, draw, loaded
from mlops.tuning.storage import database_url, open_storage, reachable

BEGUN, GPU_HOURS, RUN = "begun", "gpu_hours", "tracking_run"
_ANSWER = "answer_{}"
"""Attribute of a trial: what the pruner has said after an epoch, and what it has noted at the trial with that."""

logger = logging.getLogger(__name__)


class BudgetSpentError(StepError):
    """No further trial is begun."""

    retryable = False


class Study:
    """
    The calls of a trial, all by rank 0: ``begin``; ``report`` after each epoch; ``end``. The step that concludes calls
    ``settle``, then ``trials``.
    """

    def __init__(
        self, study: optuna.Study, storage: RDBStorage, config: TuneStep, own: Callable[[str], object]
    ) -> None:
        self._study, self._storage, self._config, self._own = study, storage, config, own
        self._ids: dict[int, int] = {}

    @classmethod
    def open(cls, document: StepInput, store: str, config: TuneStep, own: Callable[[str], object]) -> Self:
        """
        Find the study, or make it.

        :param document: of one of its steps
        :param store: URI of the object store
        :param own: loads code of the recipe by its import path
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        best_is_most = load_metric(config.train.metric, own).direction > 0
        pruner = loaded(PRUNERS, config.pruner, config.pruner_settings, own)(_most_epochs(config))
        storage = open_storage(database_url(store, document.run.folder, config.connection))
        with reachable():
            study = optuna.create_study(
                study_name=study_name(document),
                storage=storage,
                direction=StudyDirection.MAXIMIZE if best_is_most else StudyDirection.MINIMIZE,
                pruner=pruner,
                load_if_exists=True,
            )
        return cls(study, storage, config, own)

    @property
    def name(self) -> str:
        return self._study.study_name

    def trials(self) -> Mapping[int, FrozenTrial]:
        """By number, those within the budget. Of a number begun twice the one that did not fail; else the newest."""
        found: dict[int, FrozenTrial] = {}
        with reachable():
            ours = self._ours()
        for trial in ours:
            number = trial.user_attrs[NUMBER]
            if number not in found or found[number].state is TrialState.FAIL:
                found[number] = trial
        return {number: found[number] for number in sorted(found) if number < self._config.num_trials}

    def begin(self, number: int, kept: Mapping[str, Any] | None = None) -> FrozenTrial:
        """
        The trial of a number: a new one, or what an earlier attempt left of it, with the same settings.

        :param kept: settings of that attempt, where it has begun to train: the database may have been lost since
        :raises BudgetSpentError: where it is not begun yet, and the time for that is over
        """
        earlier = self.trials().get(number)
        if earlier is not None and earlier.state is not TrialState.FAIL:
            return earlier
        with reachable():
            if earlier is None:
                self._check_budget(number)
            if earlier is not None:
                parameters = earlier.params
            else:
                parameters = dict(kept or draw(self._study, self._config, number, self._own))
            # Settings and number in one transaction: no kill leaves a trial that nobody would find again.
            self._study.add_trial(
                create_trial(
                    state=TrialState.RUNNING,
                    params=parameters,
                    distributions=distributions(self._config.space),
                    user_attrs={NUMBER: number, BEGUN: time.time()},
                )
            )
        self._ids.pop(number, None)
        return self.trials()[number]

    def report(self, number: int, epoch: int, value: float, gpu_hours: float) -> bool:
        """
        Note the metric after an epoch. An epoch that is done again after a kill is answered as it was before.

        :param gpu_hours: that the trial took so far
        :return: whether the trial is to be pruned
        """
        name = _ANSWER.format(epoch)
        with reachable():
            trial_id = self._id(number)
            self._storage.set_trial_intermediate_value(trial_id, epoch, value)
            self._storage.set_trial_user_attr(trial_id, GPU_HOURS, gpu_hours)
            if isinstance(self._study.pruner, NopPruner):
                return False
            trial = self._storage.get_trial(trial_id)
            answer = trial.user_attrs.get(name)
            if answer is None:
                answer = self._asked(trial)
                self._storage.set_trial_user_attr(trial_id, name, answer)
            for key, noted in answer["noted"].items():
                self._storage.set_trial_system_attr(trial_id, key, noted)
            return bool(answer["prune"])

    def _asked(self, trial: FrozenTrial) -> dict[str, Any]:
        """
        Ask the pruner on a copy of the study.

        Optuna's successive halving notes a trial's rung before it has answered, and says no where it is asked again:
        the answer and that note are to be stored together.
        """
        storage = InMemoryStorage()
        # Hyperband's brackets go by the study's name and the trial's place in it.
        copy = optuna.create_study(study_name=self.name, storage=storage, direction=self._study.direction)
        copy.add_trials(self._study.get_trials(deepcopy=False))
        study_id = storage.get_study_id_from_name(self.name)
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        # Optuna's own may return a bool of numpy, which JSON does not take.
        prune = bool(self._study.pruner.prune(copy, storage.get_trial(trial_id)))
        noted = storage.get_trial(trial_id).system_attrs
        return {"prune": prune, "noted": {k: v for k, v in noted.items() if trial.system_attrs.get(k) != v}}

    def end(self, number: int, value: float | None, run_id: str) -> FrozenTrial:
        """
        :param value: the best epoch's; None: it was pruned
        :param run_id: of MLflow
        """
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        with reachable():
            self._storage.set_trial_user_attr(self._id(number), RUN, run_id)
            self._study.tell(self.trials()[number].number, value, state, skip_if_finished=True)
        return self.trials()[number]

    def settle(self) -> None:
        """End what nobody works on any more: called when the tasks of all trials have ended."""
        with reachable():
            for trial in self._ours(TrialState.RUNNING):
                logger.warning("trial %d did not come to an end: it counts as failed", trial.user_attrs[NUMBER])
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def restore(self, ref: TrialRef) -> None:
        """Note a trial as it was committed, where the database does not know its end."""
        with reachable():
            self._study.add_trial(
                create_trial(
                    state=TrialState[ref.state.upper()],
                    value=ref.value,
                    params=dict(ref.parameters),
                    distributions=distributions(self._config.space),
                    user_attrs={NUMBER: ref.number, RUN: ref.tracking_run},
                )
            )

    def best(self) -> FrozenTrial | None:
        """Return the best of the complete trials; of equal ones that of the lowest number."""
        sign = 1 if self._study.direction is StudyDirection.MAXIMIZE else -1
        complete = [trial for trial in self.trials().values() if trial.state is TrialState.COMPLETE]
        return max(complete, key=lambda trial: sign * (trial.value or 0.0), default=None)

    @property
    def tracking_run(self) -> str | None:
        """MLflow run that the trials' runs are children of; None until :meth:`track`."""
        with reachable():
            return self._study.user_attrs.get(RUN)

    def track(self, run_id: str) -> None:
        with reachable():
            self._study.set_user_attr(RUN, run_id)

    def by_number(self) -> optuna.Study:
        """A copy in memory for plots, whose trials are counted as their tasks are."""
        copy = optuna.create_study(study_name=self.name, direction=self._study.direction)
        copy.add_trials(list(self.trials().values()))
        return copy

    def _id(self, number: int) -> int:
        """The database's, of a trial that has begun."""
        if number not in self._ids:
            study_id = self._storage.get_study_id_from_name(self.name)
            counted = self.trials()[number].number
            self._ids[number] = self._storage.get_trial_id_from_study_id_trial_number(study_id, counted)
        return self._ids[number]

    def _ours(self, *states: TrialState) -> list[FrozenTrial]:
        """Without those that somebody else has put into the database."""
        trials = self._study.get_trials(deepcopy=False, states=states or None)
        return [trial for trial in trials if NUMBER in trial.user_attrs]

    def _check_budget(self, number: int) -> None:
        trials = self._ours()
        config = self._config
        # A trial that is begun again goes on from its checkpoint, and tells of its earlier epochs too.
        hours: dict[int, float] = {}
        for trial in trials:
            own = trial.user_attrs[NUMBER]
            hours[own] = max(hours.get(own, 0.0), trial.user_attrs.get(GPU_HOURS, 0.0))
        begun = min((each.user_attrs[BEGUN] for each in trials if BEGUN in each.user_attrs), default=time.time())
        spent = {
            "hours": ((time.time() - begun) / 3600, config.hours),
            "gpu_hours": (sum(hours.values()), config.gpu_hours),
        }
        for name, (used, allowed) in spent.items():
            if allowed is not None and used >= allowed:
                raise BudgetSpentError(
                    f"trial {number} is not begun: the study has taken {used:.3g} {name.replace('_', ' ')}, and "
                    f"tune.{name} is {allowed:g}"
                )


_CHOOSING = ("sampler", "sampler_settings", "pruner", "pruner_settings")


def study_name(document: StepInput) -> str:
    """
    The same for all trials and for the step that concludes: a retry finds its study, and so does a larger budget.

    :param document: of any of them
    """
    run, config = document.run, document.config
    kept = {name: config[name] for name in (*_CHOOSING, "space", "seed", "train", "connection")}
    kept["train"] = decisive(kept["train"], Train.operational)
    key = run_key("study", run.interval_end, run.timezone, kept, document.ref, document.code)
    return f"{run.owner}/{key}"


def _most_epochs(config: TuneStep) -> int:
    tuned = config.space.get("epochs")
    epochs: list[int] = [config.train.epochs, *(tuned.values() if tuned else ())]
    return max(epochs)
