"""Which settings a training may have that goes on from another one's checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from mlops.contract.resumption import MAY_DIFFER, Standing, TrainingFacts
from mlops.contract.sections.train import Train

STEPS = 10
"""Of an epoch."""


def section(**changes: Any) -> dict[str, Any]:
    given = {"model": "include.toy.model:build_model", "objective": "binary", "metric": "auc", "epochs": 4, **changes}
    return Train.model_validate(given).model_dump(mode="json")


def facts(settings: dict[str, Any], **changes: Any) -> TrainingFacts:
    same = {"samples": "s", "dataset": "d", "code": "c", "optimizer": ["weight_decay=0.01"]}
    return TrainingFacts(settings=settings, **{**same, **changes})


def standing(settings: dict[str, Any], step: int) -> Standing:
    history = [
        {"step": n * STEPS, "validation_metric": 0.5, "further_metrics": {}} for n in range(1, step // STEPS + 1)
    ]
    found = Standing.of({"training": facts(settings).model_dump(), "history": history, "step": step, "more": 1})
    assert found is not None
    return found


def test_a_setting_is_either_held_or_may_differ() -> None:
    """Broken: a new setting may differ though a checkpoint holds it; whoever adds one decides here."""
    assert {*Train.model_fields} >= MAY_DIFFER
    assert {*Train.model_fields} - MAY_DIFFER == {
        *("learner", "learner_settings", "model", "model_args", "program", "objective", "objective_settings"),
        *("configure_optimizer", "weight_decay", "freeze", "learning_rates", "precision"),
        *("metric", "metrics", "global_batch", "seed", "sample_order", "sequence_lengths"),
    }


@pytest.mark.parametrize("epochs", [1, 2, 3, 9])
@pytest.mark.parametrize("until", [0.3, 0.5, 1.0])
def test_the_epoch_that_was_begun_stays_in_its_order(epochs: int, until: float) -> None:
    """Broken: the rest of an epoch is dealt in another order, and some samples come twice."""
    order = {"by": "include.toy.model:difficulty", "until": until}
    then, now = section(sample_order=order), section(sample_order=order, epochs=epochs)
    for done in range(min(epochs, 4)):
        is_ordered = [done / whole < until for whole in (4, epochs)]
        assert bool(standing(then, done * STEPS + 3).hindrances(now)) == (is_ordered[0] != is_ordered[1]), done
        assert not done or not standing(then, done * STEPS).hindrances(now), "the next epoch may be as it likes"


@pytest.mark.parametrize(("step", "epochs", "fits"), [(20, 2, True), (20, 1, False), (23, 2, False), (23, 3, True)])
def test_an_epoch_that_was_begun_is_to_end(step: int, epochs: int, fits: bool) -> None:
    """Broken: nothing is trained, and the result is not that of the checkpoint."""
    assert standing(section(), step).hindrances(section(epochs=epochs)) == (
        [] if fits else [f"epochs is {epochs}, and {2 if step == 20 else 3} were begun: ask for more"]
    )


def test_exact_sums_keep_their_shards() -> None:
    """Broken: elastic: exact, whose bits no number of processes changes, gives others."""
    one = section(elastic="exact", processes=1)
    assert standing(one, 20).hindrances(section(elastic="exact", processes=2)) == [
        "logical_shards is 2 here and was 1 there"
    ]
    assert standing(one, 20).hindrances(section(elastic="exact", processes=1)) == []
    assert standing(section(), 20).hindrances(section(processes=2)) == []


@pytest.mark.parametrize(
    ("settings", "step", "said"),
    [
        ({}, 23, []),
        ({"metrics": ["include.toy.model:mine@3"]}, 20, ["include.toy.model:mine@3"]),
        ({"sample_order": {"by": "include.toy.model:difficulty"}}, 23, ["sample_order.by"]),
        ({"sample_order": {"by": "include.toy.model:difficulty"}}, 20, []),
    ],
)
def test_code_that_has_changed_is_refused_where_it_would_mix(
    settings: dict[str, Any], step: int, said: list[str]
) -> None:
    """Broken: two metrics of one name choose the best epoch; or an epoch goes on in another order."""
    now = facts(section(**settings), code="other")
    assert standing(section(**settings), step).changes(now) == [
        f"the recipe's code has changed, and {name} with it" for name in said
    ]


def test_other_samples_and_another_optimizer_are_told() -> None:
    found = standing(section(), 20).changes(facts(section(), samples="t", optimizer=["momentum=0.1"]))
    assert [each.split(":")[0] for each in found] == [
        "the samples are not those that it has learnt from",
        "the optimizer was built with 'momentum=0.1' here and 'weight_decay=0.01' there",
    ]


@pytest.mark.parametrize("meta", [{}, {"training": None}, {"training": []}, {"history": [], "step": 1}])
def test_a_checkpoint_that_says_too_little_is_none_to_go_on_from(meta: Any) -> None:
    assert Standing.of(meta) is None
