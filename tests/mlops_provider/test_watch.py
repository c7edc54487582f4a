from __future__ import annotations

import pytest

from mlops_provider.watch import sparkline


@pytest.mark.parametrize(
    ("values", "curve"), [([1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇█"), ([5], "▁"), ([3, 3], "▁▁"), ([*range(400)], None)]
)
def test_curves_fit_a_line(values: list[float], curve: str | None) -> None:
    found = sparkline(values)
    assert found == (curve or found)
    assert len(found) <= 40
    assert (found[0], found[-1]) == (("▁", "█") if len({*values}) > 1 else ("▁", "▁"))
