from __future__ import annotations

from collections.abc import Mapping

import pytest

from mlops.registry.semantic_version import Contract, semantic_version

OLD = Contract(signature="s", raw_schema="r", architecture="a")


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({}, "2.4.7"),
        ({"architecture": "b"}, "2.5.0"),
        ({"signature": "t"}, "3.0.0"),
        ({"raw_schema": "q", "architecture": "b"}, "3.0.0"),
    ],
    ids=["trained again", "other code", "other signature", "other schema and code"],
)
def test_the_largest_change_decides(changes: Mapping[str, str], number: str) -> None:
    new = Contract(**({field: getattr(OLD, field) for field in OLD.__slots__} | changes))
    before = {**OLD.tags(), "mlops.semantic_version": "2.4.6"}
    assert semantic_version(new, iter([before, OLD.tags()])) == number


def test_the_first_of_ours_is_1_0_0() -> None:
    """Broken: a version that somebody made by hand would stop all registrations."""
    assert semantic_version(OLD, iter([{"made": "by hand"}])) == "1.0.0"


def test_a_version_that_has_no_number_yet_is_counted() -> None:
    """Broken: of two that are registered at once, the later would get the number of the earlier."""
    other = Contract(signature="s", raw_schema="r", architecture="b")
    earlier = [other.tags(), OLD.tags(), {**OLD.tags(), "mlops.semantic_version": "1.0.3"}]
    assert semantic_version(other, iter(earlier)) == "1.1.1"
