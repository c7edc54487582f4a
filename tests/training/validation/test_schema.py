from __future__ import annotations

from pathlib import Path

import pytest

from mlops.contract.step import BadConfigError
from mlops.validation.schema import count_checks, read_schema

RECIPES = sorted(Path(__file__).parents[3].glob("include/*/schema.pbtxt"))
INT_X = 'feature { name: "x" type: INT '


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('feature {\n  name: "x"\n  tpye: INT\n}', r"schema\.pbtxt:3:3: .*tpye", id="unknown key"),
        pytest.param('feature { name: "x" type: INTEGER }', r"schema\.pbtxt:1:\d+: .*INTEGER", id="unknown type"),
        pytest.param("feature {", r"schema\.pbtxt:1:\d+: ", id="unclosed"),
        pytest.param("", "has no feature", id="empty"),
        pytest.param('feature { name: "x" }', "feature 'x' needs a type", id="no type"),
        pytest.param("feature { type: INT }", "feature number 1 has no name", id="no name"),
        pytest.param(INT_X + "} " + INT_X + "}", "feature 'x' is there twice", id="twice"),
        pytest.param(
            'feature { name: "x" type: BYTES domain: "colour" } string_domain { name: "color" }',
            "names the domain 'colour'.*there are: color",
            id="unknown domain",
        ),
        pytest.param(
            'string_domain { name: "d" ' + 'value: "v" ' * 10_000 + '} feature { name: "x" type: BYTES domain: "d" }',
            "'d' has 10,000 values.* rarer unknown ones would pass",
            id="more values than are looked at",
        ),
        pytest.param(
            INT_X + "skew_comparator { } }", "has a skew_comparator, which is not checked here", id="unchecked"
        ),
        pytest.param(
            INT_X + "} dataset_constraints { num_examples_drift_comparator { } }",
            "set validate.volume in the pipeline instead",
            id="volume",
        ),
    ],
)
def test_a_bad_schema_says_where_and_why(schema_of, text, message):
    with pytest.raises(BadConfigError, match=message):
        schema_of(text)


def test_a_file_that_is_no_text_says_so(tmp_path):
    path = tmp_path / "schema.pbtxt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadConfigError, match="not UTF-8 text"):
        read_schema(path, "schema.pbtxt")


def test_every_constraint_counts_as_a_check(schema):
    # Being there and type of 5 columns, 4 bounds on missing values, 1 domain, 2 + 3 bounds, no other column.
    assert count_checks(schema) == 5 * 2 + 4 + 1 + 2 + 3 + 1


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.parent.name)
def test_the_recipes_schemas_are_valid(path):
    assert count_checks(read_schema(path, path.name)) > 1


def test_there_are_recipes():
    assert {path.parent.name for path in RECIPES} >= {"flight_ranking"}
