"""The source of a package that is not part of the project, installed as a user would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from other_packages import installed, missing_on

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.ingest import Ingest
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.engines import collect
from mlops.testing.sources import SourceConformance


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed("mlops-git-log", tmp_path_factory.mktemp("site")):
        yield


def commit(repository: Path, subject: str, at: str) -> None:
    repository.mkdir(exist_ok=True)
    dates = {"GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at, "GIT_CONFIG_GLOBAL": os.devnull}
    named = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "-q"], [*named, "commit", "-q", "--allow-empty", "-m", subject]):
        subprocess.run(["git", "-C", repository, *command], check=True, env={**os.environ, **dates})


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    commit(tmp_path / "code", "first", "2024-01-01T10:00:00+00:00")
    commit(tmp_path / "code", "second, with a comma", "2024-01-02T10:00:00+00:00")
    return tmp_path / "code"


class TestGitLog(SourceConformance):
    @pytest.fixture
    def kind(self) -> str:
        return "git_log"

    @pytest.fixture
    def settings(self, repository: Path) -> dict[str, Any]:
        return {"repository": "code"}


def test_its_rows_are_those_of_the_interval(repository: Path, read: Any) -> None:
    found = read("git_log", repository="code")
    rows = collect(found.rows).sort("committed_at")
    assert rows.columns == ["commit", "author", "committed_at", "subject"]
    assert rows["subject"].to_list() == ["first", "second, with a comma"]
    assert rows["committed_at"][0] == datetime(2024, 1, 1, 10, tzinfo=UTC)
    assert found.provenance["kind"] == "git_log"
    # What comes later changes nothing of this night.
    commit(repository, "third", "2024-01-03T10:00:00+00:00")
    again = read("git_log", repository="code")
    assert again.provenance == found.provenance
    assert collect(again.rows).sort("committed_at").equals(rows)


def test_what_every_source_has_works_for_it_too(repository: Path, read: Any) -> None:
    found = read("git_log", repository="code", key=["author"], created_time="committed_at")
    assert collect(found.rows)["subject"].to_list() == ["second, with a comma"], "the latest of each author"


def test_its_own_errors_name_the_source(tmp_path: Path, read: Any) -> None:
    with pytest.raises(BadDataError, match=r"source 's': git rev-list in .*/gone: fatal: cannot change to"):
        read("git_log", repository="gone")


def ingest(**source: Any) -> Ingest:
    settings = {"sources": {"commits": source}, "event_time": "committed_at", "window": 28}
    return check_section(Ingest, settings, "ingest")


def test_its_settings_are_kept_with_their_defaults() -> None:
    config = ingest(kind="git_log", repository="code").model_dump(mode="json")
    assert config["sources"]["commits"] == {
        "kind": "git_log", "repository": "code", "branch": "HEAD", "event_time": "committed_at", "created_time": None,
        "key": [], "history_days": None, "types": {}, "as_of": None, "epoch": None, "time_zone": None,
    }  # fmt: skip
    assert Ingest.model_validate(config).model_dump(mode="json") == config


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "git_logs"}, "sources.commits.kind must be one of files, .*did you mean 'git_log'?"),
        ({"kind": "git_log"}, "the key 'sources.commits.repository' is missing"),
        ({"kind": "git_log", "repository": "c", "brunch": "b"},
         "unknown key 'sources.commits.brunch'; did you mean 'branch'?"),
        ({"kind": "git_log", "repository": "c", "key": ["author"]}, "key must be given with created_time"),
        ({"kind": "git_log", "repository": 3}, "sources.commits.repository must be a valid string, got 3"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_where_it_stands(source: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        ingest(**source)
    for part in message.split(".*"):
        assert part in str(raised.value)


def test_a_recipe_may_bring_a_source(tmp_path: Path, repository: Path, read: Any) -> None:
    """By its import path: the scheduler does not import it, and a wrong setting is an error of the step."""
    recipe = tmp_path / "include/taxi"
    recipe.mkdir(parents=True)
    (recipe / "commits.py").write_text("from mlops_git_log import GIT_LOG as COMMITS\n")
    path = "include.taxi.commits:COMMITS"
    assert ingest(kind=path, repositry="code").sources["commits"].kind == path
    assert collect(read(path, repository="code", event_time="committed_at").rows).height == 2
    with pytest.raises(BadConfigError, match="ingest.sources.s: unknown key 'repositry'; did you mean 'repository'"):
        read(path, repositry="code")
    (recipe / "stray.py").write_text(
        "from dataclasses import replace\nfrom mlops_git_log import GIT_LOG\n"
        "STRAY = replace(GIT_LOG, reader='include.other.reader:GitReader')\n"
    )
    with pytest.raises(BadConfigError, match="'include.other.reader:GitReader' is in another recipe"):
        read("include.taxi.stray:STRAY", repository="code")
    with pytest.raises(BadConfigError, match="has no 'GIT'"):
        read("include.taxi.commits:GIT", repository="code")


def test_defaults_of_a_recipes_own_source_hold(tmp_path: Path, repository: Path, read: Any) -> None:
    """Broken: its settings say that a column is a date, and that another is added, and the rows are otherwise."""
    recipe = tmp_path / "include/taxi"
    recipe.mkdir(parents=True)
    (recipe / "defaults.py").write_text(
        "from dataclasses import replace\n"
        "from mlops_git_log import GIT_LOG, GitLog\n\n"
        "class Dated(GitLog):\n"
        "    event_time: str | None = None\n"
        "    as_of: str | None = 'read_at'\n"
        "    types: dict[str, str] = {'committed_at': 'date'}\n\n"
        "DATED = replace(GIT_LOG, section=Dated)\n"
    )
    found = read("include.taxi.defaults:DATED", repository="code")
    schema = collect(found.rows).schema
    assert (schema["committed_at"], schema["read_at"]) == (pl.Date(), pl.Datetime("us", "UTC"))
    assert found.columns[-1] == "read_at"


def test_the_page_shows_this_package() -> None:
    files = ["pyproject.toml", "mlops_git_log.py", "mlops_git_log_reader.py"]
    assert missing_on("source.md", "mlops-git-log", files) == []
