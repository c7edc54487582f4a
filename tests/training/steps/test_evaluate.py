from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
import pytest
from mlflow import MlflowClient
from turns import on_turn

from mlops.contract.refs import CheckpointRef, DatasetRef, ModelVersionRef, ReportRef, ValidationRef
from mlops.contract.sections.ingest import TimeSplit
from mlops.contract.step import Failure
from mlops.data.snapshots.snapshot import write_snapshot
from mlops.data.sources.window import Window
from mlops.store import Store

IMPROVEMENT = {"improvement": 0.005, "metric": None, "confidence": 0.95, "min_samples": 30, "seed_noise": None}
START = datetime(2013, 1, 9, tzinfo=UTC)
FEATURES = """
from mlops import FeatureSet, Standardise

FEATURES = FeatureSet(
    label="label", group_by={group_by}, min_group_size={min_group_size}, order_by=("at", "item"),
    transforms=[Standardise(name) for name in {columns}],
)
"""


def snapshot(
    store: Store,
    scratch: Path,
    days: int = 10,
    binary: bool = False,
    without: Sequence[str] = (),
    factor: float = 1.0,
) -> ValidationRef:
    """Queries of 2 to 5 items; ``good`` says much about the label, ``poor`` little. Some queries have no label."""
    rng = np.random.default_rng(0)
    rows = []
    for query in range(days * 40):
        for item in range(int(rng.integers(2, 6))):
            good, poor = rng.normal(size=2)
            relevance = 0 if query % 10 == 0 else int(np.clip(round(2 + good + 0.3 * poor + rng.normal() / 2), 0, 4))
            at = START + timedelta(days=query // 40, minutes=query)
            label = int(relevance > 2) if binary else relevance
            city = "ABC"[query % 3]
            rows.append(
                {"at": at, "query": query, "item": item, "city": city, "good": good, "poor": poor, "label": label}
            )
    frame = pl.DataFrame(rows).with_columns(pl.col("poor") * factor).drop(without)
    end = START + timedelta(days=days)
    manifest = write_snapshot(
        store,
        nw.from_native(frame.lazy()),
        name="toy",
        window=Window.before(end, days, "UTC"),
        event_time="at",
        sources={},
        split=TimeSplit(validation=2, test=3),
        creator={},
        engine="polars",
        scratch=scratch,
    )
    dataset = DatasetRef(
        place=f"ingest/{manifest.version[:12]}",
        artifacts={"manifest": store.put_artifact("ingest/toy", "manifest.json", manifest.to_json())},
        name="toy",
        version=manifest.version,
        schema_hash=manifest.schema_hash,
        num_rows=manifest.num_rows,
        num_bytes=manifest.num_bytes,
        interval_start=START.isoformat(),
        interval_end=end.isoformat(),
    )
    return ValidationRef(
        place=f"validate/{manifest.version[:12]}", schema_sha256="0" * 64, num_checks=1, parent=dataset
    )


@pytest.fixture
def trained(project: Any, run_step: Any, config: Any) -> Any:
    """Writes a recipe with the given features, and trains it."""

    def train(
        columns: list[str],
        *,
        binary: bool = False,
        key: str = "first",
        without: Sequence[str] = (),
        factor: float = 1.0,
        **changes: Any,
    ) -> CheckpointRef:
        group_by, size = ("()", 1) if binary else ('("query",)', 2)
        text = FEATURES.format(group_by=group_by, min_group_size=size, columns=columns)
        (project.home / "include/toy/features.py").write_text(text)
        section = {"feature_set": "include.toy.features:FEATURES", "online": None}
        parent = snapshot(project.store, project.home, binary=binary, without=without, factor=factor)
        features = run_step(project, project.step_input("features", section, parent, key))
        objective = {"objective": "binary", "metric": "auc"} if binary else {}
        section = config(**{"processes": 1, **objective, **changes})
        checkpoint = run_step(project, project.step_input("train", section, features, key))
        assert isinstance(checkpoint, CheckpointRef), checkpoint
        return checkpoint

    return train


@pytest.fixture
def evaluate(project: Any, run_step: Any) -> Any:
    def run(
        checkpoint: CheckpointRef, key: str = "first", metric: str = "ndcg@10", **changes: Any
    ) -> ReportRef | Failure:
        section = {
            "registered_model": project.pipeline,
            "metric": metric,
            "metrics": [],
            "rules": [IMPROVEMENT],
            "slices": [],
            "fairness": [],
            "price_per_gpu_hour": None,
            **changes,
        }
        return run_step(project, project.step_input("evaluate", section, checkpoint, key))

    return run


@pytest.fixture
def register(project: Any, run_step: Any) -> Any:
    """Registers a version and puts it into production."""

    def run(report: ReportRef, key: str = "first") -> ModelVersionRef | Failure:
        section = {"registered_model": project.pipeline}
        version = run_step(project, project.step_input("register", section, report, key))
        if isinstance(version, Failure):
            return version
        move = {"action": "promote", "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None}
        return run_step(project, project.step_input("promote", move, version, key))

    return run


def test_the_champion_is_scored_by_its_own_code_on_the_same_rows(
    project: Any, trained: Any, evaluate: Any, register: Any
) -> None:
    """Broken: a change of features or model would compare the new model with a champion that never existed."""
    first = evaluate(trained(["poor"]))
    assert isinstance(first, ReportRef), first
    assert (first.passed, first.champion) == (True, None)
    assert isinstance(register(first), ModelVersionRef)

    # Other features, and a model whose weights do not fit the old ones.
    model = project.home / "include/toy/model.py"
    model.write_text(model.read_text().replace("nn.Tanh()", "nn.Tanh(), nn.Linear(config.hidden, config.hidden)"))
    second = evaluate(trained(["poor", "good"], key="second"), key="second")
    assert isinstance(second, ReportRef), second
    assert second.champion == "1"
    assert second.metrics["champion.ndcg@10"] == pytest.approx(first.metrics["ndcg@10"], abs=1e-12)
    assert second.metrics["difference.ndcg@10.low"] > 0
    assert second.passed
    version = register(second, key="second")
    assert version.version == "2"

    # Back to the poor features: the gate stops it.
    third = evaluate(trained(["poor"], key="third", seed=5), key="third")
    assert not third.passed
    assert "not more than the 0.50% improvement" in third.reason
    failure = register(third, key="third")
    assert isinstance(failure, Failure)
    assert not failure.retryable
    client = MlflowClient(tracking_uri=project.tracking_uri)
    assert client.get_model_version_by_alias(project.pipeline, "champion").version in ("2", 2)


def test_the_report_is_complete_in_itself(project: Any, trained: Any, evaluate: Any) -> None:
    """Broken: the page would be blank offline, or not say what was decided on which data."""
    ref = evaluate(trained(["good"]))
    html = project.store.read(ref.artifacts["report"]).decode()
    assert ref.reason in html
    assert ref.ancestor(DatasetRef).version in html
    assert html.count("<svg") == 3
    assert not [tag for tag in ("src=", "<script", "<link", "@import", "url(http") if tag in html]
    metrics = json.loads(project.store.read(ref.artifacts["metrics"]))
    assert metrics["num_samples"] == 120
    assert metrics["num_unmeasured"] == 12, "every tenth query has no relevant document"
    assert {entry["value"] for entry in metrics["slices"]} == {"A", "B", "C"}
    files = MlflowClient(tracking_uri=project.tracking_uri).list_artifacts(ref.parent.tracking_run, "evaluation")
    names = {"report.html", "metrics.json", "model_package.zip"}
    assert {file.path for file in files} == {f"evaluation/{name}" for name in names}


@on_turn(0, 2)
def test_a_binary_model_is_measured_by_auc_and_log_loss(trained: Any, evaluate: Any, register: Any) -> None:
    first = evaluate(trained(["good"], binary=True), metric="auc", metrics=["log_loss", "f1", "calibration_error"])
    assert isinstance(first, ReportRef), first
    assert first.metrics["auc"] > 0.8
    assert first.metrics["candidate.log_loss"] < np.log(2)
    register(first)
    second = evaluate(trained(["good"], binary=True, key="second", seed=8), key="second", metric="auc")
    assert second.metrics["champion.auc"] == pytest.approx(first.metrics["auc"], abs=1e-12)


@on_turn(1, 2)
def test_the_lower_log_loss_wins(project: Any, trained: Any, evaluate: Any, register: Any) -> None:
    """Broken: where less is better, the worse model would go to production, and the best slice pass for the worst."""

    def judged(columns: list[str], key: str) -> Any:
        rules = [
            IMPROVEMENT,
            {"slices": 0.1, "min_samples": 20, "confidence": 0.95},
        ]
        checkpoint = trained(columns, binary=True, key=key, metric="log_loss")
        return evaluate(checkpoint, key, metric="log_loss", rules=rules, slices=["city"])

    first = judged(["poor"], "first")
    assert isinstance(register(first), ModelVersionRef), first
    second = judged(["poor", "good"], "second")
    assert second.passed, second.reason
    assert second.metrics["log_loss"] < second.metrics["champion.log_loss"] == first.metrics["log_loss"]
    assert second.metrics["difference.log_loss.high"] < 0
    document = json.loads(project.store.read(second.artifacts["metrics"]))
    assert [each["passed"] for each in document["verdict"]["outcomes"]] == [True, True]
    values = [each["candidate"]["value"] for each in document["slices"]]
    assert values == sorted(values, reverse=True), "worst first"
    html = project.store.read(second.artifacts["report"]).decode()
    assert "log loss, lower is better" in html
    assert "validation log loss" in html, "the axis of the training's curve"
    assert isinstance(register(second, "second"), ModelVersionRef)

    third = judged(["poor"], "third")
    document = json.loads(project.store.read(third.artifacts["metrics"]))
    assert [each["passed"] for each in document["verdict"]["outcomes"]] == [False, False]


@on_turn(0, 2)
def test_slices_of_one_class_are_told(project: Any, trained: Any, evaluate: Any, register: Any) -> None:
    """Broken: a rule about slices would hold because there were none."""
    register(evaluate(trained(["good"], binary=True), metric="auc"))
    settings = {"slices": ["label"], "rules": [{"slices": 0.1, "min_samples": 100, "confidence": 0.95}]}
    ref = evaluate(trained(["good"], binary=True, key="second"), key="second", metric="auc", **settings)
    assert isinstance(ref, ReportRef), ref
    assert "AUC can be measured on no slice of 100 samples" in ref.reason
    document = json.loads(project.store.read(ref.artifacts["metrics"]))
    assert [each.keys() for each in document["slices"]] == 2 * [{"column", "value", "num_samples"}]
    html = project.store.read(ref.artifacts["report"]).decode()
    assert f"AUC cannot be measured on label 0 ({document['slices'][0]['num_samples']}), label 1 (" in html


def test_an_objective_may_change_where_the_classes_stay(
    project: Any, trained: Any, evaluate: Any, register: Any
) -> None:
    """Broken: every evaluation ends in a figure that is drawn of what another objective predicts."""
    register(evaluate(trained(["good"], binary=True), metric="log_loss"))
    model = project.home / "include/toy/model.py"
    text = model.read_text().replace("nn.Linear(config.hidden, 1)", "nn.Linear(config.hidden, config.num_outputs)")
    model.write_text(text.replace("nn.Flatten(-2)", "nn.Identity()"))
    for classes, key in ((2, "two"), (3, "three")):
        several = {"objective": "multiclass", "objective_settings": {"classes": classes}, "metric": "log_loss"}
        checkpoint = trained(["good", "poor"], binary=True, key=key, **several)
        found = evaluate(checkpoint, key, metric="log_loss", metrics=["accuracy"])
        if classes == 2:
            assert isinstance(found, ReportRef), found
            assert {"candidate.accuracy", "champion.accuracy"} <= found.metrics.keys()
        else:
            assert isinstance(found, Failure), found
            assert "the number of its classes is 2, and the candidate's 3" in found.message


def test_a_metric_of_another_objective_is_refused(trained: Any, evaluate: Any) -> None:
    failure = evaluate(trained(["good"]), metric="auc")
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert "does not fit the objective 'ranking'" in failure.message


def test_a_champion_that_the_data_no_longer_fits_is_named(
    project: Any, trained: Any, evaluate: Any, register: Any
) -> None:
    """Broken: the message would speak of a column that the reader's own feature set does not use."""
    register(evaluate(trained(["poor"])))
    failure = evaluate(trained(["good"], key="second", without=["poor"]), key="second")
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert f"the model in production, {project.pipeline} version 1 (champion), cannot be scored" in failure.message
    assert "there is no column 'poor'" in failure.message
    # Without a champion the servers would have no model, and the audit trail would refuse the next version.
    assert "alias" not in failure.message
    assert "Give the data what that model needs, or put another version in its place" in failure.message
    assert f"mlops models rollback {project.pipeline} --why" in failure.message
    assert f"mlops models promote {project.pipeline} VERSION --why" in failure.message


def test_a_champion_that_the_store_has_lost_is_no_fault_of_the_data(
    project: Any, trained: Any, evaluate: Any, register: Any
) -> None:
    """Broken: people would look for what is wrong with tonight's data."""
    first = trained(["poor"])
    register(evaluate(first))
    second = trained(["good"], key="second")
    weights = first.artifacts["weights"]
    path = Path(project.store.uri.removeprefix("file://")) / weights.key
    path.write_bytes(bytes(weights.num_bytes))
    damaged = evaluate(second, key="damaged")
    path.unlink()
    missing = evaluate(second, key="missing")
    for failure, words in ((damaged, "is damaged"), (missing, "is missing from")):
        assert isinstance(failure, Failure)
        assert not failure.retryable
        assert f"the model in production, {project.pipeline} version 1 (champion), cannot be read" in failure.message
        assert weights.key in failure.message
        assert words in failure.message
        assert "the data" not in failure.message
        assert f"mlops models rollback {project.pipeline} --why" in failure.message


def test_scores_of_the_champion_that_are_not_finite_are_said_to_be_its_own(
    project: Any, trained: Any, evaluate: Any, register: Any
) -> None:
    """Broken: whoever trained the candidate would search it for what the model in production makes of new data."""
    model = project.home / "include/toy/model.py"
    text = model.read_text()
    root = "\n\nclass Root(nn.Module):\n    def forward(self, hidden):\n        return torch.sqrt(50 - hidden)\n"
    model.write_text(text.replace("nn.Tanh()", "Root()") + root)
    register(evaluate(trained(["poor"])))
    model.write_text(text)
    failure = evaluate(trained(["poor"], key="second", factor=1e6), key="second")
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert "420 of 420 scores of the champion, version 1, are not finite" in failure.message


def test_a_model_that_mixes_samples_is_refused(project: Any, trained: Any, evaluate: Any) -> None:
    """Broken: it is measured among a thousand samples, goes into production, and answers each request at random."""
    model = project.home / "include/toy/model.py"
    mixer = "\n\nclass Centre(nn.Module):\n    def forward(self, hidden):\n        return hidden - hidden.mean(0)\n"
    model.write_text(model.read_text().replace("nn.Tanh()", "Centre()") + mixer)
    failure = evaluate(trained(["good", "poor"]))
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert "for the same one in a request of its own" in failure.message
    assert "over dimension 0" in failure.message


def test_a_model_that_looks_at_its_whole_group_is_measured_as_it_is_served(
    project: Any, trained: Any, evaluate: Any
) -> None:
    """Broken: attention among a group's rows sees padding where it is measured, and none where it is served."""
    model = project.home / "include/toy/model.py"
    attention = (
        "\n\nclass Attention(nn.Module):\n    def forward(self, hidden):\n"
        "        weights = torch.softmax(hidden @ hidden.transpose(1, 2), dim=-1)\n        return weights @ hidden\n"
    )
    model.write_text(model.read_text().replace("nn.Tanh()", "Attention()") + attention)
    report = evaluate(trained(["good", "poor"]))
    assert isinstance(report, ReportRef), report


def test_an_empty_hold_out_is_bad_data(project: Any, trained: Any, evaluate: Any) -> None:
    checkpoint = trained(["good"])
    manifest = json.loads(project.store.read(checkpoint.ancestor(DatasetRef).artifacts["manifest"]))
    manifest["splits"]["test"]["days"] = []
    artifact = project.store.put_artifact("ingest/empty", "manifest.json", json.dumps(manifest).encode())
    wire = checkpoint.to_wire()
    wire["parent"]["parent"]["parent"]["artifacts"]["manifest"] = {
        "key": artifact.key,
        "sha256": artifact.sha256,
        "num_bytes": artifact.num_bytes,
    }
    failure = evaluate(CheckpointRef.from_wire(wire))
    assert isinstance(failure, Failure)
    assert not failure.retryable


def test_the_model_of_a_script_of_ones_own_is_judged_like_any_other(
    project: Any, trained: Any, evaluate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: what such a script leaves would train, and then not be evaluated."""
    (project.home / "include/toy/train_mine.py").write_text(
        "from mlops import Program\n"
        "program = Program.start()\n"
        "program.finish(program.build_model().state_dict(), epoch=2, metrics={'ndcg@10': 0.5})\n"
    )
    for name, value in {"HOME": project.home, "STORE": project.store.uri, "RESULT_PATH": "unused"}.items():
        monkeypatch.setenv(f"MLOPS_{name}", str(value))
    report = evaluate(trained(["good", "poor"], program="include/toy/train_mine.py"))
    assert isinstance(report, ReportRef), report
    assert "epoch 2 of 2" in project.store.read(report.artifacts["report"]).decode()


def test_every_rule_is_judged_and_shown(project: Any, trained: Any, evaluate: Any, register: Any) -> None:
    """Broken: a rule would be in the file and not in the decision, or nobody could see why it failed."""
    noise = {"deviation": 0.01, "trainings": 9}
    rules = [
        {**IMPROVEMENT, "improvement": 0.0, "metric": "log_loss", "confidence": 0.9, "seed_noise": noise},
        {"metric": "auc", "at_least": 0.6, "at_most": None},
        {"metric": "hits", "at_least": 0.5, "at_most": None},
        {"slices": 0.1, "min_samples": 20, "confidence": 0.95},
        {"latency_p99_ms": 5_000.0},
        {"size_mb": 0.0001},
        {"fairness": 0.9, "measure": "equalised_odds"},
        {"fairness": 1.0, "measure": "demographic_parity"},
    ]  # fmt: skip
    (project.home / "include/toy/measures.py").write_text(
        "from mlops import MetricSpec, ratio_of_sums\n"
        "def hits(predictions, parameter):\n"
        "    right = (predictions.predicted > 0) == (predictions.labels > 0)\n"
        "    return ratio_of_sums(right, right >= 0, predictions.offsets)\n"
        "HITS = MetricSpec(measures=['logit'], higher_is_better=True, title='hits', weighted=hits)\n"
    )
    settings = {
        "metrics": ["log_loss", "f1", "include.toy.measures:HITS"],
        "rules": rules,
        "slices": ["city"],
        "fairness": ["city", "label"],
    }
    register(evaluate(trained(["poor"], binary=True), metric="auc"))
    ref = evaluate(trained(["poor", "good"], binary=True, key="second"), key="second", metric="auc", **settings)
    assert isinstance(ref, ReportRef), ref
    document = json.loads(project.store.read(ref.artifacts["metrics"]))
    passed = [each["passed"] for each in document["verdict"]["outcomes"]]
    assert passed == [True, True, True, True, True, False, False, True]
    assert not ref.passed
    assert ref.reason.startswith("Size of the served model")
    assert document["metrics"]["log_loss"]["difference"]["high"] < 0, "the better model loses less"
    assert {"difference.hits.low", "candidate.f1"} <= ref.metrics.keys()
    assert [each["column"] for each in document["slices"]] == ["city"] * 3
    values = [each["candidate"]["value"] for each in document["slices"]]
    assert values == sorted(values), "worst first"
    assert document["fairness"][0]["num_groups"] == 3
    assert document["fairness"][1]["equalised_odds"] is None, "rows of one label have no odds of the other"
    html = project.store.read(ref.artifacts["report"]).decode()
    assert html.count('class="bar"') == len(rules) - 1, "what cannot be measured has none"
    assert "not measurable" in html
    assert html.count("<svg") == 6
    assert "6 of 8 rules hold" in html
    assert "How the data changed since the champion" in html


@on_turn(0, 2)
def test_few_queries_do_not_prove_an_improvement(trained: Any, evaluate: Any, register: Any) -> None:
    """Broken: the luck of a small hold-out would be promoted. Of 120 queries twelve have no relevant document."""
    register(evaluate(trained(["poor"])))
    checkpoint = trained(["poor", "good"], key="second")
    for min_samples, passed in ((109, False), (108, True)):
        ref = evaluate(checkpoint, key=f"of{min_samples}", rules=[{**IMPROVEMENT, "min_samples": min_samples}])
        assert isinstance(ref, ReportRef), ref
        assert ref.passed is passed, ref.reason
        assert passed or "on 108 of the 109 samples that are asked for" in ref.reason


@on_turn(1, 2)
def test_the_same_checkpoint_is_judged_alike_again(trained: Any, evaluate: Any, register: Any) -> None:
    """Broken: whoever clears a task that was stopped could have it pass."""
    register(evaluate(trained(["poor"])))
    checkpoint = trained(["poor", "good"], key="second")
    first, again = evaluate(checkpoint, key="second"), evaluate(checkpoint, key="again")
    assert (first.passed, first.reason, first.metrics) == (again.passed, again.reason, again.metrics)


def test_odd_requests_are_tried(project: Any, trained: Any, evaluate: Any) -> None:
    """Broken: a server would be the first to see what the model makes of a missing value."""
    ref = evaluate(trained(["good"]))
    serving = json.loads(project.store.read(ref.artifacts["metrics"]))["serving"]
    odd = {(each["column"], each["value"]): each for each in serving["disturbances"]}
    assert odd["good", "not a number"]["num_refused"] == odd["good", "not a number"]["num_requests"] > 0
    far = odd["good", "far above"]
    assert (far["num_refused"], far["num_not_finite"], far["num_failed"]) == (0, 0, 0)
    assert not [each for each in serving["disturbances"] if each["num_failed"]]
    assert 0 < serving["latency_p50_ms"] <= serving["latency_p99_ms"]
    assert serving["num_bytes"] > 1_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"metrics": ["precision"]}, "metrics.0 must be one of ndcg@K, mrr, auc,", id="metric"),
        pytest.param({"slices": ["town"]}, "evaluate.slices: the snapshot has no column 'town'", id="slice"),
        pytest.param({"slices": ["query"]}, "column 'query' has 120 values", id="slice of many values"),
        pytest.param({"fairness": ["city"]}, "evaluate.fairness compares predicted classes", id="fairness"),
        pytest.param({"rules": [{"metric": "profit", "at_least": 1.0, "at_most": None}]},
                     "a rule is about 'profit', but measured are ndcg@10", id="rule"),
        pytest.param({"metrics": ["include.toy.model:measure"]}, "has no 'measure'", id="function"),
        pytest.param({"metrics": ["include.toy.model:build_model"]}, "is a function, no MetricSpec", id="no metric"),
        pytest.param({"metrics": ["include.toy.model:BROKEN"]}, "metric 'broken' failed on 420 rows: KeyError: 'gone'",
                     id="failing"),
    ],
)  # fmt: skip
def test_a_setting_that_does_not_fit_is_named(
    trained: Any, evaluate: Any, changes: dict[str, Any], message: str
) -> None:
    failure = evaluate(trained(["good"]), **changes)
    assert isinstance(failure, Failure), failure
    assert not failure.retryable
    assert message in failure.message
