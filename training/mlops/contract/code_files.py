"""The user's files that decide what a step does. Standard library only."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

CODE_SUFFIXES: Final = frozenset(
    {
        *(".py", ".sql", ".pbtxt", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg"),
        *(".csv", ".tsv", ".txt", ".jsonl", ".parquet", ".arrow", ".npy"),
    }
)
"""
Files of a recipe that count: code, and the small tables and settings that code reads. Notes and notebooks do not, which
an image may lack; nor do others, which may be secrets, for what counts is stored with a model.
"""
MOST_FILES: Final = 200


def code_files(folder: Path) -> list[Path]:
    """The files of a recipe folder that decide what it does, sorted."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in CODE_SUFFIXES
        and not any(map(is_passed_over, path.relative_to(folder).parts[:-1]))
        and path.is_file()
    )


def is_passed_over(name: str) -> bool:
    """Tell a folder that holds none of a recipe's code: byte code, the copies that notebooks keep, what mounts hide."""
    return name == "__pycache__" or name.startswith(".")


def code_digest(paths: Iterable[Path]) -> str:
    """SHA-256 over names and contents of files and folders; a missing one counts as missing."""
    digest = hashlib.sha256()
    for path in paths:
        for file in _files(path):
            content = file.read_bytes() if file.is_file() else b"\0missing"
            digest.update(f"{file.relative_to(path) if file != path else file.name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def files_told(home: Path, paths: Iterable[str]) -> dict[str, str]:
    """
    Return short digests of the user's files that a step runs, by their paths below the project's folder, for people who
    look for what was changed. Of more than :data:`MOST_FILES` they are those of the folders, which end in ``/``.
    """
    folders = [home / path for path in paths]
    told = sorted({file for path in folders for file in _files(path) if file.is_file()})
    told = told if len(told) <= MOST_FILES else folders
    return {f"{os.path.relpath(each, home)}{'/' * each.is_dir()}": code_digest([each])[:12] for each in told}


def _files(path: Path) -> list[Path]:
    return code_files(path) if path.is_dir() else [path]
