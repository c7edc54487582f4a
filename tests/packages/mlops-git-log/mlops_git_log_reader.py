"""Reads the commits that a branch had at the end of the data interval."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from mlops_git_log import GitLog

from mlops import BadDataError, Piece, Position, SourceReader

SEPARATOR = "\x1f"
COLUMNS = {"commit": "%H", "author": "%an", "committed_at": "%cI", "subject": "%s"}


@dataclass(frozen=True, kw_only=True)
class GitReader(SourceReader[GitLog]):
    """Settles the newest commit, and reads it with all that came before: the same rows at each retry."""

    documents = False
    text = False
    local = False

    @property
    def folder(self) -> Path:
        return self.home / self.settings.repository

    def position(self) -> Position:
        before = f"--before={self.records.as_of.isoformat()}"
        commit = git(self.name, self.folder, "rev-list", "-1", before, self.settings.branch).strip()
        if not commit:
            raise BadDataError(f"source {self.name!r}: {self.folder} has no commit before {self.records.as_of}")
        return {"commit": commit}

    def pieces(self, position: Position, scratch: Path) -> Sequence[Piece]:
        return [Commits(self.name, self.folder, position["commit"])]


@dataclass(frozen=True, slots=True)
class Commits:
    """The history of a commit, to be read in any process."""

    source: str
    folder: Path
    commit: str

    @property
    def place(self) -> str:
        return f"{self.folder} at {self.commit[:12]}"

    def __call__(self) -> pl.LazyFrame:
        log = git(self.source, self.folder, "log", f"--format={SEPARATOR.join(COLUMNS.values())}", self.commit)
        rows = [line.split(SEPARATOR) for line in log.splitlines()]
        frame = pl.DataFrame(rows, schema=dict.fromkeys(COLUMNS, pl.String), orient="row")
        return frame.lazy().with_columns(pl.col("committed_at").str.to_datetime(time_unit="us", time_zone="UTC"))


def git(source: str, folder: Path, *arguments: str) -> str:
    """:raises BadDataError: with git's own words"""
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadDataError(f"source {source!r}: git {arguments[0]} in {folder}: {done.stderr.strip()}")
    return done.stdout
