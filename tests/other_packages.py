"""Packages of others that use the doors: installed as a user would, into a folder of the test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mlops.contract import extensions

REPOSITORY = Path(__file__).parents[1]


def package(name: str) -> Path:
    return REPOSITORY / "tests/packages" / name


@contextmanager
def installed(name: str, site: Path, requires: Sequence[str] = ()) -> Iterator[None]:
    """
    Have a package installed in a folder, from which this process imports.

    :param requires: what it requires beside what the runtime has
    """
    uv = REPOSITORY / ".venv/uv/bin/uv"
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--no-deps", "--target", site, package(name), *requires], check=True
    )
    sys.path.insert(0, str(site))
    extensions.installed.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        extensions.installed.cache_clear()


def missing_on(page: str, name: str, files: Sequence[str]) -> list[str]:
    """Return those files of a package that a page of ``docs/write-your-own`` does not show as they are."""
    text = (REPOSITORY / "docs/write-your-own" / page).read_text()
    return [file for file in files if f"# {file}\n{(package(name) / file).read_text()}```" not in text]
