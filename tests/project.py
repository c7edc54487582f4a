"""A small project in a folder of its own: real code, a few hundred rows. Used by tests of every part."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FIRST_DAY = datetime(2024, 1, 1, tzinfo=UTC)
NUM_DAYS = 14
QUERIES = [f"q{number:02}" for number in range(20)]


def make_project(folder: Path) -> Path:
    """
    Lay out a project: this repository's code, its own recipes and data.

    :return: the folder, to be used as ``home``
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("training", "plugins", ".venv", "requirements.txt"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "data").mkdir()
    (folder / "dags").mkdir()
    write_events(folder / "data/events.csv")
    recipe = REPOSITORY / "tests/fixtures/events"
    shutil.copytree(recipe, folder / "include/events", ignore=shutil.ignore_patterns("*.yaml", "__pycache__"))
    shutil.copy(recipe / "events.pipeline.yaml", folder / "dags")
    for name in ("pipelines.py", "pipeline_errors.py"):
        shutil.copy(REPOSITORY / "dags" / name, folder / "dags")
    shutil.copy(REPOSITORY / "tests/fixtures/dags/listening.py", folder / "dags")
    return folder


def with_passwords(file: Path, passwords: Mapping[str, str], roles: Mapping[str, str]) -> dict[str, str]:
    """
    Return the settings of an Airflow whose users log in by its simple auth manager.

    :param file: is written
    :param roles: by user; ``user`` where none is given
    """
    file.write_text(json.dumps(dict(passwords)))
    return {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{each}:{roles.get(each, 'user')}" for each in passwords),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(file),
    }


def write_events(path: Path, *, rows_of_last_day: int | None = None, first_day: int = 1) -> None:
    """
    Search results of 14 days: what was shown for a query, and how relevant it turned out (0 to 4).

    :param first_day: of January 2024
    :param rows_of_last_day: as many rows on the last day; the usual 100 if None
    """
    chance = random.Random(7)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["at", "query", "item", "price", "rating", "relevance"])
        for day in range(NUM_DAYS):
            rows = [(query, item) for query in QUERIES for item in range(5)]
            if day == NUM_DAYS - 1 and rows_of_last_day is not None:
                rows = rows[:rows_of_last_day]
            for position, (query, item) in enumerate(rows):
                at = FIRST_DAY + timedelta(days=day + first_day - 1, minutes=position)
                rating = chance.gauss(0, 1)
                relevance = min(4, max(0, round(2 + 1.5 * rating + chance.gauss(0, 0.3))))
                price = f"{chance.uniform(1, 9):.2f}" if chance.random() > 0.05 else "NA"
                writer.writerow([f"{at:%Y-%m-%dT%H:%M:%SZ}", query, item, price, f"{rating:.4f}", relevance])


def add_recipe_file(home: Path, recipe: str, name: str, code: str) -> None:
    """Write one file of a recipe, e.g. ``dataset.py``."""
    folder = home / "include" / recipe
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(code)
