"""Tables that nobody chose: whatever is proposed for them makes features and trains."""

from __future__ import annotations

import os
import random
import string
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from mlops.contract.step import BadConfigError, BadDataError
from mlops.first_recipe.files import features_text, pipeline_text
from mlops.first_recipe.proposal import propose
from mlops.first_recipe.table import read_table
from mlops.rehearsal.rehearse import rehearse
from mlops.store import Store

NOW = datetime(2024, 6, 5, 12, tzinfo=UTC)
SEEDS = range(int(os.environ["CHAOS_ROUNDS"])) if "CHAOS_ROUNDS" in os.environ else range(12)
Column = Callable[[random.Random, int], list[Any]]


def dates(chance: random.Random, size: int) -> list[Any]:
    first, step = date(2023, 1, 1) + timedelta(days=chance.randrange(400)), chance.choice([1, 1, 1, 2, 7, 30])
    days = [first + timedelta(days=step * chance.randrange(40)) for _ in range(size)]
    return [f"{day}T{chance.randrange(24):02}:00:00Z" for day in days] if chance.random() < 0.5 else days


COLUMNS: list[Column] = [
    lambda chance, size: [chance.gauss(0, 10 ** chance.randrange(-3, 6)) for _ in range(size)],
    lambda chance, size: [chance.randrange(chance.choice([2, 3, 9, 1000])) - 1 for _ in range(size)],
    lambda chance, size: [chance.choice(["a", "b c", "d:e", "it's", "é", "", "yes", "1"]) for _ in range(size)],
    lambda chance, size: [chance.choice([True, False]) for _ in range(size)],
    lambda chance, size: ["".join(chance.choices(string.printable, k=6)) for _ in range(size)],
    lambda chance, size: [chance.choice([1.0, 2.0, float("nan")]) for _ in range(size)],
    lambda chance, size: list(range(size)),
    lambda chance, size: ["same"] * size,
    lambda chance, size: [[chance.random(), 1.0] for _ in range(size)],
    dates,
]


def table(chance: random.Random) -> pl.DataFrame:
    size, rows = chance.choice([30, 200, 900]), {}
    for number in range(chance.randrange(2, 8)):
        values = chance.choice(COLUMNS)(chance, size)
        if chance.random() < 0.3:
            values = [None if chance.random() < 0.1 else value for value in values]
        rows[chance.choice(["x{}", "column {}", "{}", "Größe [{}]", "on{}"]).format(number)] = values
    return pl.DataFrame(rows, strict=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_recipe_is_proposed_that_trains_or_the_reason_is_said(seed: int, tmp_path: Path) -> None:
    """Broken: `mlops init` would write files that fail, and leave the person with an error of ours."""
    chance, name = random.Random(seed), f"any{seed}"  # a module of its own
    rows = table(chance)
    path = tmp_path / "data/t.parquet"
    path.parent.mkdir()
    if chance.random() < 0.5 and not any(dtype.is_nested() for dtype in rows.dtypes):
        path = path.with_suffix(".csv")
        rows.write_csv(path, separator=chance.choice(",;\t"))
    else:
        rows.write_parquet(path)
    found = read_table(path, tmp_path, tmp_path / "scratch", NOW)
    try:
        proposal = propose(found, label=None, objective=None, event_time=None, zone="UTC", today=NOW.date())
    except (BadConfigError, BadDataError) as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert said.startswith(("the label ", "--label ", "there is nothing to learn"))
        return
    (tmp_path / f"include/{name}").mkdir(parents=True)
    (tmp_path / f"include/{name}/features.py").write_text(features_text(name, proposal))
    text = pipeline_text(name, found, proposal, NOW.date())
    document = {"timezone": "UTC", **yaml.safe_load(text)}
    rehearsed = rehearse(
        document, home=tmp_path, store=Store(f"file://{tmp_path}/store"), scratch=tmp_path / "rehearsal", now=NOW
    )  # fmt: skip
    assert not rehearsed.problems, f"{text}\n{(tmp_path / f'include/{name}/features.py').read_text()}"
    assert "an epoch of lightgbm" in rehearsed.done
