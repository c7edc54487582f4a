"""``mlops schema propose``, as its process: what a snapshot would need, and that nothing is widened unseen."""

from __future__ import annotations

import difflib
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from committed_snapshots import ZONE, commit_snapshot, visits
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from mlops.contract.refs import DatasetRef, ValidationRef
from mlops.contract.sections.validate import Validate
from mlops.contract.step import RunIdentity, StepInput, python_path
from mlops.process import ProcessSettings
from mlops.steps.execution import execute
from mlops.store import Store
from mlops.validation.proposal import propose_schema, revise_schema, write_schema
from mlops.validation.schema import read_schema
from mlops.validation.schema_text import revise_text
from mlops.validation.statistics import dataset_statistics

CHECKOUT = Path(__file__).parents[3]
PATH = "include/visits/schema.pbtxt"
Run = Callable[..., subprocess.CompletedProcess[str]]

SCHEMA = """\
# What a visit looks like.
feature { name: "at" type: INT time_domain { integer_format: UNIX_SECONDS } presence { min_fraction: 1 } }
feature { name: "page" type: BYTES domain: "page" presence { min_fraction: 1 min_count: 1 } }  # a path

# Of the one who came.
feature {
  name: "visitor"
  type: INT
  # Numbers start at 100.
  int_domain { min: 100 max: 9999 }
}
feature { name: "seconds" type: FLOAT float_domain { min: 0 max: 60 disallow_nan: true } presence { min_fraction: 1 } }
string_domain {
  name: "page"
  value: "/cart"   # "# not } a comment's end"
  value: "/home"
}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / PATH).parent.mkdir(parents=True)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


@pytest.fixture
def propose(home: Path, store: Store) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mlops.commands", "schema", "propose", "visits", "--schema", PATH, *arguments],
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": python_path(CHECKOUT),
                "MLOPS_HOME": str(home),
                "MLOPS_STORE": store.uri,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def night(**columns: pl.Expr) -> pl.DataFrame:
    return visits(1, 2, 3).with_columns(**columns)


def test_a_first_schema_is_printed_whole_and_saved_only_when_asked(home, store, propose):
    commit_snapshot(store, night(), last_day=3)
    printed = propose("--label", "seconds")
    assert printed.returncode == 1, printed.stderr
    assert not (home / PATH).exists()
    assert "--write" in printed.stderr
    written = propose("--label", "seconds", "--write")
    assert written.returncode == 0, written.stderr
    assert (home / PATH).read_text() == printed.stdout
    assert "2024-01-01 to 2024-01-03, 12 rows" in printed.stdout
    schema = read_schema(home / PATH, PATH)
    assert [feature.name for feature in schema.proto.feature if "SERVING" in feature.not_in_environment] == ["seconds"]
    again = propose()
    assert (again.returncode, again.stdout) == (0, ""), again.stderr


def test_a_schema_that_fits_needs_no_change(home, store, propose):
    (home / PATH).write_text(SCHEMA)
    commit_snapshot(store, night(), last_day=3)
    done = propose()
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_patch_holds_what_is_needed_and_no_more(home, store, propose):
    """A person reviews it line by line: a line too many would be taken over unread."""
    (home / PATH).write_text(SCHEMA)
    rows = night(
        page=pl.when(pl.col("visitor") == 301).then(pl.lit("/köln")).otherwise("page"),
        visitor=pl.col("visitor") - 5,
        seconds=pl.when(pl.col("at").dt.day() != 3).then("seconds"),
        lang=pl.lit("en"),
    )
    commit_snapshot(store, rows, last_day=3)
    done = propose()
    assert done.returncode == 1, done.stderr
    changed = [line for line in done.stdout.splitlines()[2:] if line[0] in "+-"]
    assert changed == [
        "-  int_domain { min: 100 max: 9999 }",
        "+  int_domain { min: 95 max: 9999 }",
        '-feature { name: "seconds" type: FLOAT float_domain { min: 0 max: 60 disallow_nan: true } '
        "presence { min_fraction: 1 } }",
        '+feature { name: "seconds" type: FLOAT float_domain { min: 0 max: 60 disallow_nan: true } '
        "presence { min_count: 0 } }",
        '+feature { name: "lang" type: BYTES domain: "lang" presence { min_fraction: 1.0 min_count: 1 } }',
        '+  value: "/köln"',
        "+string_domain {",
        '+  name: "lang"',
        '+  value: "en"',
        "+}",
    ]
    # On the newest day there is no value of it at all.
    assert "column seconds" in done.stderr
    assert (home / PATH).read_text() == SCHEMA
    subprocess.run(["patch", "-p0"], input=done.stdout, text=True, cwd=home, check=True, capture_output=True)
    again = propose()
    assert (again.returncode, again.stdout) == (0, ""), again.stderr


def test_a_column_that_went_or_became_another_is_described_anew(home, store, propose):
    """TFDV's own update would deprecate it: from then on nobody would look at it."""
    (home / PATH).write_text(SCHEMA)
    rows = night(visitor=pl.col("visitor").cast(pl.String), seconds=pl.col("seconds").cast(pl.Int64))
    commit_snapshot(store, rows.drop("page"), last_day=3)
    assert propose("--write").returncode == 0
    schema = read_schema(home / PATH, PATH).proto
    assert {feature.name: schema_pb2.FeatureType.Name(feature.type) for feature in schema.feature} == {
        "at": "INT",
        "visitor": "BYTES",
        "seconds": "INT",
    }
    assert not schema.string_domain
    assert not any(feature.HasField("lifecycle_stage") for feature in schema.feature)
    text = (home / PATH).read_text()
    assert "# What a visit looks like." in text
    assert "# Of the one who came." in text


def test_a_retyped_column_may_lack_no_more_values_than_need_be(home, store, propose):
    """A first proposal leaves room for twice the missing ones; a change must not widen what was agreed."""
    (home / PATH).write_text(SCHEMA)
    seconds = pl.when(pl.int_range(pl.len()) % 5 > 0).then(pl.col("seconds")).cast(pl.Int64)
    commit_snapshot(store, night(seconds=seconds), last_day=3)
    assert propose("--write").returncode == 0
    (feature,) = (feature for feature in read_schema(home / PATH, PATH).proto.feature if feature.name == "seconds")
    assert feature.presence.min_fraction > 0.7


def test_what_no_description_of_columns_allows_is_said(home, store, propose):
    (home / PATH).write_text(SCHEMA + "dataset_constraints { min_examples_count: 1000 }\n")
    commit_snapshot(store, night(), last_day=3)
    done = propose()
    assert (done.returncode, done.stdout) == (0, "")
    assert "still does not fit" in done.stderr


def test_another_snapshot_than_the_newest_can_be_named(home, store, propose):
    (home / PATH).write_text(SCHEMA)
    commit_snapshot(store, night(), last_day=3)
    commit_snapshot(store, visits(2, 3, 4).with_columns(lang=pl.lit("en")), last_day=4)
    assert propose("--snapshot", "2024-01-03").returncode == 0
    assert '"lang"' in propose().stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--label", "secnods"], "--label secnods.*seconds", id="unknown label"),
        pytest.param(["--snapshot", "2023-05-05"], "there is no snapshot 'visits@2023-05-05'", id="unknown snapshot"),
        pytest.param(["--schema", "include/visits"], "include/visits: is a folder", id="folder"),
    ],
)
def test_a_mistake_is_no_answer(home, store, propose, arguments, message):
    """Exit code 1 says that the schema has to change."""
    (home / PATH).write_text(SCHEMA)
    commit_snapshot(store, night(), last_day=3)
    done = propose(*arguments)
    assert done.returncode == 2
    assert re.search(message, done.stderr, re.DOTALL), done.stderr


@pytest.fixture
def validate(home: Path, store: Store) -> Callable[[DatasetRef], ValidationRef]:
    """The step that a run holds its snapshot against the schema with."""

    def run(dataset: DatasetRef) -> ValidationRef:
        identity = RunIdentity(
            pipeline="visits", run_key=Path(dataset.place).name, interval_start=dataset.interval_start,
            interval_end=dataset.interval_end, timezone=ZONE, dag_id="visits", task_id="validate", run_id="run",
            try_number=1,
        )  # fmt: skip
        settings = Validate(schema_path=PATH).model_dump(mode="json")
        ref = execute(
            StepInput(step="validate", run=identity, config=settings, ref=dataset),
            ProcessSettings(
                home=home, store=store.uri, tracking_uri="", result_path=home.parent / "result.json", rank=0
            ),
        )
        assert isinstance(ref, ValidationRef)
        return ref

    return run


def test_a_proposal_in_force_is_revised_for_the_newest_snapshot(home, store, propose, validate):
    """Broken: whoever saves it replaces what all runs so far were held against, and is not told of it."""
    first = validate(commit_snapshot(store, visits(*range(1, 8)), last_day=7))
    in_force = store.read(first.artifacts["schema"]).decode()
    page = pl.when(pl.col("visitor") == 801).then(pl.lit("/new")).otherwise("page")
    commit_snapshot(store, visits(*range(2, 9)).with_columns(page=page), last_day=8)
    revised = propose()
    assert revised.returncode == 1, revised.stderr
    lines = difflib.ndiff(in_force.splitlines(), revised.stdout.splitlines())
    assert [line for line in lines if line[0] in "+-"] == ['+   value: "/new"']
    assert re.search(r"did not fit: column page: unknown values .*'/new'", revised.stderr), revised.stderr
    another = propose("--snapshot", "2024-01-08")
    assert another.returncode == 1, another.stderr
    assert "2024-01-02 to 2024-01-08, 28 rows" in another.stdout
    assert '"/new"' in another.stdout
    assert "did not fit" not in another.stderr
    assert not (home / PATH).exists()


def proposed(frame: pl.DataFrame) -> dict[str, schema_pb2.Feature]:
    proto = propose_schema(dataset_statistics(frame, "window"), frame.schema)
    return {feature.name: feature for feature in proto.feature}


def test_a_proposal_takes_integers_for_integers_and_strings_for_strings():
    """From the data of January and February alone ``month - 1`` would be taken for a boolean."""
    frame = pl.DataFrame({"month": [0, 1] * 5, "cancelled": [True, False] * 5, "zip": ["101", "202"] * 5})
    features = proposed(frame)
    assert {name: feature.WhichOneof("domain_info") for name, feature in features.items()} == {
        "month": None,
        "cancelled": "bool_domain",
        "zip": None,
    }


def test_a_proposal_bounds_missing_values():
    """TFDV leaves nullable columns without any bound: they could become empty unnoticed."""
    features = proposed(pl.DataFrame({"x": [None] + [1] * 9, "mostly": [None] * 7 + [1] * 3}))
    assert {name: round(feature.presence.min_fraction, 2) for name, feature in features.items()} == {
        "x": 0.8,
        "mostly": 0.0,
    }


def test_a_proposal_refuses_nan_and_infinities_where_there_were_none():
    """To TFDV NaN is a value: a column of nothing else would have all that ``min_fraction`` asks for."""
    features = proposed(pl.DataFrame({"x": [0.5, None], "nan": [0.5, math.nan], "inf": [0.5, math.inf]}))
    domains = {name: feature.float_domain for name, feature in features.items()}
    assert {name: (domain.disallow_nan, domain.disallow_inf) for name, domain in domains.items()} == {
        "x": (True, True),
        "nan": (False, True),
        "inf": (True, False),
    }


ONE_LINE = 'feature { name: "a" type: INT int_domain { min: 1 } } feature { name: "b" type: INT }\n'


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(ONE_LINE, id="one line"),
        pytest.param(ONE_LINE.replace("} feature", "}\nfeature"), id="a line each"),
        pytest.param(text_format.MessageToString(text_format.Parse(ONE_LINE, schema_pb2.Schema())), id="many lines"),
        pytest.param('feature: < name: "a", type: INT; int_domain: < min: 1 > >feature{name:"b"type:INT}', id="dense"),
        pytest.param('feature: [{ name: "a" type: INT int_domain { min: 1 } }, { name: "b" type: INT }]', id="list"),
        pytest.param(
            "# { \" }\nfeature { name: 'a' # }\n type: INT int_domain{min:1}}\n" + 'feature{name:"" "b" type:INT}',
            id="quotes",
        ),
    ],
)
@pytest.mark.parametrize("columns", [["a"], ["b"], ["b", "c"], ["a", "b", "c"], ["c"]], ids="+".join)
def test_the_text_says_what_the_messages_say(text, columns):
    """However it was written: a wrong edit would be a schema that nobody decided on."""
    rows = pl.DataFrame({"a": [-7, 5], "b": [0.5, None], "c": ["x", "y"]}).select(columns)
    before = text_format.Parse(text, schema_pb2.Schema())
    after = revise_schema(before, [dataset_statistics(rows, "window")], rows.schema)
    assert text_format.Parse(revise_text(text, before, after), schema_pb2.Schema()) == after
    assert revise_schema(after, [dataset_statistics(rows, "window")], rows.schema) == after


def test_a_new_domain_takes_no_committed_ones_name():
    rows = pl.DataFrame({"a": ["x"], "b": ["y"]})
    before = text_format.Parse(
        'feature { name: "a" type: BYTES domain: "b" } string_domain { name: "b" value: "x" }', schema_pb2.Schema()
    )
    after = revise_schema(before, [dataset_statistics(rows, "window")], rows.schema)
    domains = {domain.name: list(domain.value) for domain in after.string_domain}
    assert {feature.name: domains[feature.domain] for feature in after.feature} == {"a": ["x"], "b": ["y"]}


def test_a_column_of_another_environment_is_left_alone():
    rows = pl.DataFrame({"a": ["x"] * 100})
    before = text_format.Parse(
        'feature { name: "a" type: BYTES } feature { name: "asked" type: INT not_in_environment: "TRAINING" }',
        schema_pb2.Schema(),
    )
    assert revise_schema(before, [dataset_statistics(rows, "window")], rows.schema) == before


def test_the_heading_says_what_one_window_cannot_tell():
    text = write_schema(schema_pb2.Schema(), "2013-01-11 to 2013-02-09, 26,104 rows")
    assert "2013-01-11 to 2013-02-09, 26,104 rows" in text
    assert "min_fraction" in text
    assert "domains" in text
