"""What ``tune`` may say, held against the training that it searches for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.tune import Choices, Range, Tune
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import load_pipeline

PIPELINE = Path(__file__).parents[2] / "tests/fixtures/pipelines/flight_ranking.pipeline.yaml"


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Pipeline]:
    """Reads the ranking pipeline with a search for these settings."""

    def run(*space: str, more: str = "") -> Pipeline:
        lines = "\n".join(f"    {line}" for line in space)
        path = tmp_path / PIPELINE.name
        path.write_text(PIPELINE.read_text().replace("\nevaluate:", f"\ntune:\n  space:\n{lines}\n{more}\nevaluate:"))
        return load_pipeline(path)

    return run


def test_values_are_as_the_training_takes_them(load: Callable[..., Pipeline]) -> None:
    """Broken: a learning rate would be drawn as a whole number, or reach the training as a string."""
    tune = load(
        "learning_rate: {low: 1e-5, high: 1, log: true}",
        "weight_decay: {choices: [0, 1e-3]}",
        "schedule.warmup_steps: {low: 100, high: 2000, step: 100}",
        "model_args.hidden: {choices: [32, 64]}",
    ).tune
    assert tune is not None
    rate = tune.space["learning_rate"]
    assert isinstance(rate, Range)
    assert (rate.low, rate.high, type(rate.high)) == (1e-5, 1.0, float)
    assert tune.space["weight_decay"].values() == [0.0, 0.001]
    assert tune.space["schedule.warmup_steps"].values() == [100, 2000]
    assert tune.trials == 20, "the default"


@pytest.mark.parametrize(
    ("space", "message"),
    [
        pytest.param("learning_rat: {low: 1, high: 2}", ":42:19: tune.space.learning_rat must be a setting that "
                     "train has; did you mean 'learning_rate'?", id="unknown setting"),
        pytest.param("schedule.warmup: {low: 1, high: 2}", "did you mean 'schedule.warmup_steps'?", id="unknown part"),
        pytest.param("model_args.hiden: {choices: [1, 2]}", "did you mean 'model_args.hidden'?", id="unknown argument"),
        pytest.param("learning_rate: {low: -1, high: 2}", ":42:20: tune.space.learning_rate must be of values that "
                     "train takes: > 0, got -1", id="value that train refuses"),
        pytest.param("schedule.kind: {choices: [cosin]}", "train takes: 'constant', 'linear' or 'cosine', got 'cosin'",
                     id="choice that train refuses"),
        pytest.param("epochs: {low: 1.5, high: 3}", "of values that train takes: a valid integer", id="fraction"),
        pytest.param("epochs: {low: 1, high: 3, step: 0.5}", "must be whole numbers, but step is 0.5", id="step"),
        pytest.param("compile: {low: 0, high: 1}", "must be choices, for the setting is no number", id="no number"),
        pytest.param("processes: {choices: [1, 2]}", "processes is the same in all of them", id="same in all"),
        pytest.param("learning_rate: {low: 0, high: 2, log: true}", "low must be > 0, got 0", id="log of 0"),
        pytest.param("learning_rate: {low: 2, high: 1}", "low must be < high, got low 2 and high 1", id="empty range"),
        pytest.param("epochs: {low: 1, high: 9, log: true, step: 2}", "log and step do not go together", id="both"),
        pytest.param("global_batch: {choices: [32, 32]}", "different from each other", id="choice given twice"),
        pytest.param("learning_rate: {low: 1e-5, high: .inf, log: true}",
                     ":42:38: tune.space.learning_rate.high must be a finite number, got inf", id="endless range"),
        pytest.param("learning_rate: {choices: [0.1, .nan]}",
                     ":42:36: tune.space.learning_rate.choices.1 must be a finite number, got nan", id="nan"),
        pytest.param("model_args.hidden: {choices: [1, true]}", "different from each other: choices are [1, True]",
                     id="choices that are equal to Python"),
        pytest.param("epochs: {choices: ['1', 1]}", "different from each other: choices are [1, 1]",
                     id="choices that train takes for one"),
        pytest.param("epochs: {low: 1, high: 3, step: 5}", "step must be <= high - low, got low 1, high 3 and step 5",
                     id="step out of the range"),
        pytest.param("global_batch: {low: 3}", "the key 'tune.space.global_batch.high' is missing", id="half a range"),
        pytest.param("global_batch: {low: 3, high: 4, stp: 1}",
                     "unknown key 'tune.space.global_batch.stp'; did you mean 'step'?", id="key of a range"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_place_value_and_fix(load: Callable[..., Pipeline], space: str, message: str) -> None:
    """Broken: it would come up hours later, in each trial, or be searched in vain."""
    with pytest.raises(SpecError) as caught:
        load(space)
    assert str(caught.value).startswith("flight_ranking.pipeline.yaml:42:")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        pytest.param("  sampler: grid", "give space.learning_rate choices, or whole numbers", id="endless grid"),
        pytest.param("  trials: 2000", "tune.trials must be <= 1024, got 2000", id="more than Airflow maps"),
        pytest.param(
            "  sampler: tpo", "tune.sampler must be one of tpe, random, grid (did you mean 'tpe'?)", id="sampler"
        ),
        pytest.param("  hours: 0", "tune.hours must be > 0, got 0", id="no time"),
        pytest.param("  hours: .inf", "tune.hours must be a finite number, got inf", id="no end"),
        pytest.param(
            "  sampler_settings: {startup: 3}", "unknown key 'tune.sampler_settings.startup'", id="its setting"
        ),
        pytest.param("  trails: 3", "unknown key 'tune.trails'; did you mean 'trials'?", id="typo"),
    ],
)
def test_a_search_that_cannot_be_is_refused(load: Callable[..., Pipeline], more: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load("learning_rate: {low: 1e-5, high: 1e-2}", more=more)
    assert message in str(caught.value)


def test_a_step_may_reach_from_end_to_end(load: Callable[..., Pipeline]) -> None:
    """Broken: 0.3 - 0.1 is less than 0.2 to a computer."""
    assert load("learning_rate: {low: 0.1, high: 0.3, step: 0.2}").tune is not None


def test_a_grid_has_as_many_trials_as_combinations(load: Callable[..., Pipeline]) -> None:
    grid = ("global_batch: {choices: [16, 32]}", "epochs: {low: 1, high: 5, step: 2}")
    whole, some = (load(*grid, more=f"  sampler: grid{more}").tune for more in ("", "\n  trials: 4"))
    assert whole is not None
    assert some is not None
    assert (whole.trials, some.trials) == (6, 4)


@pytest.mark.parametrize(
    ("bounds", "values"),
    [("low: 0, high: 3", [0.0, 1.0, 2.0, 3.0]), ("low: 1, high: 6, step: 2", [1.0, 3.0, 5.0])],
    ids=["of 1", "of 2"],
)
def test_whole_bounds_of_a_fraction_are_a_grid(load: Callable[..., Pipeline], bounds: str, values: list[float]) -> None:
    """Broken: mlops lint takes the file, and the DAG does not import, without a word of file and line."""
    tune = load(f"weight_decay: {{{bounds}}}", more="  sampler: grid").tune
    assert tune is not None
    assert tune.space["weight_decay"] == Choices(choices=values)
    assert [type(each) for each in tune.space["weight_decay"].values()] == [float] * len(values)
    assert tune.trials == len(values)
    again = check_section(Tune, tune.model_dump(mode="json"), "tune")
    assert again.num_trials == len(values), "as the operator checks it"


def test_values_of_a_grid_are_those_that_the_training_takes(load: Callable[..., Pipeline]) -> None:
    """Broken: of a grid over a fraction that has more values than Airflow maps the operator would know, and no lint."""
    with pytest.raises(SpecError) as caught:
        load("weight_decay: {low: 0, high: 5000}", more="  sampler: grid\n  trials: 9")
    assert str(caught.value).startswith("flight_ranking.pipeline.yaml:42:")
    assert "must be given as choices, for a grid of 5001 fractions is too long, got" in str(caught.value)
