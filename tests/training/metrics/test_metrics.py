from __future__ import annotations

import itertools

import numpy as np
import pytest
from measured import measure, metric_of, objective_of, predictions_of
from sklearn import metrics as sklearn_metrics

from mlops.contract.step import BadDataError
from mlops.metrics.binary import WeightedAuc, auc
from mlops.metrics.ranking import ndcg


@pytest.fixture
def queries() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(2, 25, 60))]).astype(np.int64)
    labels = rng.integers(0, 5, offsets[-1]).astype(np.float32)
    scores = np.round(rng.normal(size=offsets[-1]), 1).astype(np.float32)  # rounded: with ties
    return labels, scores, offsets


@pytest.mark.parametrize("cutoff", [1, 3, 10, 100])
def test_ndcg_equals_scikit_learn(queries: tuple[np.ndarray, np.ndarray, np.ndarray], cutoff: int) -> None:
    labels, scores, offsets = queries
    expected = [
        sklearn_metrics.ndcg_score([2 ** labels[a:b] - 1], [scores[a:b]], k=cutoff)
        for a, b in itertools.pairwise(offsets)
    ]
    np.testing.assert_allclose(ndcg(labels, scores, offsets, cutoff), expected, atol=1e-12)


def test_a_query_without_relevant_documents_is_left_out_of_the_mean() -> None:
    labels, scores = np.array([0.0, 0, 1, 0]), np.array([1.0, 2, 1, 2])
    offsets = np.array([0, 2, 4])
    per_query = ndcg(labels, scores, offsets, 10)
    assert np.isnan(per_query[0])
    assert measure("ndcg@10", labels, scores, offsets) == per_query[1] == pytest.approx(1 / np.log2(3))


def test_auc_equals_scikit_learn_with_ties_and_weights() -> None:
    rng = np.random.default_rng(1)
    labels, scores = rng.integers(0, 2, 500).astype(float), np.round(rng.normal(size=500), 1)
    weights = rng.integers(0, 4, 500)
    assert auc(labels, scores) == pytest.approx(sklearn_metrics.roc_auc_score(labels, scores), abs=1e-12)
    expected = sklearn_metrics.roc_auc_score(labels, scores, sample_weight=weights)
    assert WeightedAuc(labels, scores)(weights) == pytest.approx(expected, abs=1e-12)


def test_log_loss_equals_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    labels, logits = rng.integers(0, 2, 200).astype(float), rng.normal(size=200) * 3
    measured = measure("log_loss", labels, logits, np.arange(201))
    assert measured == pytest.approx(sklearn_metrics.log_loss(labels, 1 / (1 + np.exp(-logits))))


def test_f1_equals_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    labels, logits = rng.integers(0, 2, 200).astype(float), rng.normal(size=200)
    expected = sklearn_metrics.f1_score(labels > 0, logits > 0)
    assert measure("f1", labels, logits, np.arange(201)) == pytest.approx(expected)


def of_classes(name: str, labels: np.ndarray, logits: np.ndarray, weights: np.ndarray | None = None) -> float:
    predictions = objective_of("multiclass", classes=logits.shape[1]).predictions(
        labels.astype(np.float32), logits, np.arange(len(labels) + 1)
    )
    weighted = metric_of(name).weighted(predictions)
    return float(weighted.values((np.ones(len(labels)) if weights is None else weights)[None].astype(float))[0])


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_classes_equal_scikit_learn(weighted: bool) -> None:
    """Of six classes, one of which has no rows, and one is never predicted."""
    rng = np.random.default_rng(5)
    labels = rng.choice([0, 1, 2, 3, 5], 400)
    logits = rng.normal(size=(400, 6)) + 2 * np.eye(6)[labels]
    logits[:, 3] -= 20
    weights = rng.integers(0, 4, 400) if weighted else np.ones(400)
    chosen, shares = logits.argmax(axis=1), np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    given = {"sample_weight": weights}
    expected = {
        "accuracy": sklearn_metrics.accuracy_score(labels, chosen, **given),
        "balanced_accuracy": sklearn_metrics.balanced_accuracy_score(labels, chosen, **given),
        "macro_f1": sklearn_metrics.f1_score(labels, chosen, average="macro", **given),
        "log_loss": sklearn_metrics.log_loss(labels, shares, labels=range(6), **given),
        "top_k_accuracy@2": sklearn_metrics.top_k_accuracy_score(labels, shares, k=2, labels=range(6), **given),
    }
    for name, value in expected.items():
        assert of_classes(name, labels, logits, weights) == pytest.approx(value, rel=1e-6), name


def test_two_classes_are_measured_alike_however_they_are_predicted() -> None:
    rng = np.random.default_rng(6)
    labels, logits = rng.integers(0, 2, 200), rng.normal(size=200)
    both = np.stack([-logits / 2, logits / 2], axis=1)
    for name in ("accuracy", "balanced_accuracy", "macro_f1", "log_loss"):
        alone = measure(name, labels.astype(float), logits, np.arange(201))
        assert of_classes(name, labels, both) == pytest.approx(alone, rel=1e-6), name


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_several_labels_equal_scikit_learn(weighted: bool) -> None:
    """Of five labels, one of which no row has, though one is said to have it."""
    rng = np.random.default_rng(8)
    labels = rng.integers(0, 2, (300, 5)) * [1, 1, 1, 1, 0]
    logits = rng.normal(size=(300, 5)) + 2 * labels - [0, 0, 0, 0, 2]
    weights = rng.integers(0, 4, 300) if weighted else np.ones(300)
    chosen, shares, given = logits > 0, 1 / (1 + np.exp(-logits)), {"sample_weight": weights}
    assert chosen[:, 4].any()
    pairs = {"sample_weight": np.repeat(weights, 5)}
    expected = {
        "accuracy": sklearn_metrics.accuracy_score(labels, chosen, **given),
        "hamming_loss": sklearn_metrics.hamming_loss(labels, chosen, **given),
        "micro_f1": sklearn_metrics.f1_score(labels, chosen, average="micro", **given),
        "macro_f1": sklearn_metrics.f1_score(labels, chosen, average="macro", **given),
        "macro_auc": sklearn_metrics.roc_auc_score(labels[:, :4], shares[:, :4], average="macro", **given),
        "log_loss": sklearn_metrics.log_loss(labels.reshape(-1), shares.reshape(-1), **pairs),
    }
    predictions = objective_of("multilabel", labels=list("abcde")).predictions(
        labels.astype(np.float32), logits, np.arange(301)
    )
    for name, value in expected.items():
        found = metric_of(name).weighted(predictions).values(weights[None].astype(float))[0]
        assert found == pytest.approx(value, rel=1e-6), name


def test_one_label_of_several_is_measured_as_where_it_is_alone() -> None:
    """Whatever it is measured by: two times the same label is that label."""
    rng = np.random.default_rng(9)
    labels, logits = rng.integers(0, 2, 200).astype(np.float32), rng.normal(size=200)
    twice = [np.stack([each, each], axis=1) for each in (labels, logits)]
    doubled = objective_of("multilabel", labels=["a", "b"]).predictions(*twice, np.arange(201))
    same = {"accuracy": "accuracy", "log_loss": "log_loss", "macro_auc": "auc", "micro_f1": "f1", "macro_f1": "f1"}
    for several, alone in same.items():
        expected = measure(alone, labels, logits, np.arange(201))
        assert metric_of(several).measure(doubled) == pytest.approx(expected, rel=1e-6), several


def test_calibration_error_of_classes_is_that_of_the_most_probable_one() -> None:
    """Whatever is said of the others: 70% is said, and 60% of the rows are of that class."""
    logits = np.tile(np.log([0.7, 0.2, 0.1]), (1000, 1))
    labels = np.repeat([0, 1], [600, 400])
    assert of_classes("calibration_error", labels, logits) == pytest.approx(0.1, abs=1e-6)


def test_calibration_error_is_the_distance_of_probability_and_frequency() -> None:
    """Of 15,000 rows in bins of one probability each, of which 10 points more turn out positive than was said."""
    said = np.repeat(np.linspace(0.1, 0.8, 15), 1000)
    labels = np.concatenate([np.arange(1000) < round(1000 * (share + 0.1)) for share in said[::1000]]).astype(float)
    logits = np.log(said / (1 - said))
    assert measure("calibration_error", labels, logits, np.arange(15_001)) == pytest.approx(0.1, abs=1e-3)


def test_mrr_is_the_place_of_the_first_relevant_document() -> None:
    labels = np.array([0.0, 1, 2, 1, 0, 0, 0, 0, 1, 0])
    scores = np.array([3.0, 2, 1, 5, 4, 9, 8, 7, 7, 7])
    offsets = np.array([0, 3, 5, 7, 10])  # second, first, none to be found, last of three equals
    assert measure("mrr", labels, scores, offsets) == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)


@pytest.mark.parametrize("metric", ["ndcg@3", "mrr", "auc", "log_loss", "f1", "calibration_error", "perplexity"])
def test_weights_count_samples_as_often(metric: str) -> None:
    """Broken: the bootstrap would resample something else than it says."""
    rng = np.random.default_rng(4)
    labels, scores = rng.integers(0, 2, 90).astype(float), rng.normal(size=90)
    offsets, counts = np.arange(0, 91, 3), rng.integers(0, 4, 30)
    rows = (3 * np.repeat(np.arange(30), counts)[:, None] + np.arange(3)).ravel()
    drawn = measure(metric, labels[rows], scores[rows], np.arange(0, len(rows) + 1, 3))
    by_weight = metric_of(metric).weighted(predictions_of(labels, scores, offsets)).values(counts[None].astype(float))
    # The bins are those of the rows before they were drawn.
    assert by_weight[0] == pytest.approx(drawn, rel=0.5 if metric == "calibration_error" else 1e-9)


@pytest.mark.parametrize(("metric", "sign"), [("auc", 1), ("ndcg@10", 1), ("log_loss", -1), ("perplexity", -1)])
def test_the_direction_says_which_way_is_better(metric: str, sign: int) -> None:
    assert metric_of(metric).direction == sign


@pytest.mark.parametrize(
    ("metric", "labels", "scores", "message"),
    [
        ("auc", [], [], "no rows"),
        ("auc", [1, 1], [0.1, 0.2], "all 2 labels are 1"),
        ("ndcg@5", [0, 0], [0.1, 0.2], "none of the 1 queries"),
        ("mrr", [0, 0], [0.1, 0.2], "none of the 1 queries"),
        ("f1", [0, 0], [-0.1, -0.2], "no label and no prediction of the 2 rows is positive"),
        ("log_loss", [], [], "no rows"),
        ("ndcg@5", [1, 0], [float("nan"), float("nan")], "2 of 2 scores are not finite"),
        ("perplexity", [2, 2], [4000.0, 4000.0], "the mean loss of a token, 2000 nats, is too large"),
    ],
)
def test_a_split_that_cannot_be_measured_is_bad_data(metric: str, labels: list, scores: list, message: str) -> None:
    """Broken: a NaN metric would choose the best epoch, or pass the gate."""
    with pytest.raises(BadDataError, match=message):
        measure(metric, np.array(labels, float), np.array(scores, float), np.array([0, len(labels)]))


def test_perplexity_is_that_of_a_token() -> None:
    """Broken: a short document would count as much as a long one."""
    num_tokens, losses = np.array([1.0, 9.0]), np.array([5.0, 9 * np.log(2)])
    assert measure("perplexity", num_tokens, losses, np.arange(3)) == pytest.approx((np.exp(5) * 2**9) ** (1 / 10))


def test_of_equal_scores_the_first_class_is_the_one_predicted() -> None:
    """Broken: a model that knows nothing, and gives all classes the same, would be right at any k."""
    labels, logits = np.arange(60) % 5, np.zeros((60, 5))
    for k in (1, 2, 5):
        assert of_classes(f"top_k_accuracy@{k}", labels, logits) == pytest.approx(k / 5)
    assert of_classes("accuracy", labels, logits) == pytest.approx(1 / 5)
