"""The git checkout that code runs from: its commit, what differs from it, and a commit checked out elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlops.contract.code_files import CODE_SUFFIXES
from mlops.contract.recipe_bundles import deployed
from mlops.contract.step import BadConfigError

CODE_FOLDERS: Final = ("include", "plugins", "training")
"""
Folders of a project that hold the code that a step's process runs. Files elsewhere, and of other kinds than code, may
hold secrets.
"""
MAX_PATCH_BYTES: Final = 4 << 20
_DIFF: Final = ("diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-relative")
_PREFIXES: Final = ("--src-prefix=a/", "--dst-prefix=b/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Code files that are not as the commit has them, or that it does not have."""

    files: Sequence[str]
    """Paths of the files, relative to the repository's root."""
    patch: bytes | None
    """Patch for ``git apply``; None if it would be larger than :data:`MAX_PATCH_BYTES`."""


def uncommitted(home: Path) -> Changes:
    """
    Return the project's code that is not in its commit; files that git ignores are left out, and so are recipes that
    were sent with the run, which are kept themselves.

    :param home: project folder, the root of its repository or a folder in it
    """
    home = deployed(home)
    top = _top(home)
    folders = [name for name in CODE_FOLDERS if (home / name).is_dir()]
    if top is None or not folders or git(home, "rev-parse", "HEAD") is None:
        return Changes(files=(), patch=b"")
    known = _names(home, "diff", "HEAD", "--name-only", "-z", "--no-relative", "--", *folders)
    new = _names(home, "ls-files", "--others", "--exclude-standard", "--full-name", "-z", "--", *folders)
    # A link may lead out of the project.
    new = [name for name in new if not (top / name).is_symlink()]
    num_bytes = sum((top / name).stat().st_size for name in [*known, *new] if (top / name).is_file())
    if num_bytes > MAX_PATCH_BYTES:
        return Changes(files=(*known, *new), patch=None)
    parts = [_diff(top, "HEAD", "--", *known)] if known else []
    parts += [_diff(top, "--no-index", "--", os.devnull, name) for name in new]
    patch = b"".join(parts)
    return Changes(files=(*known, *new), patch=patch if len(patch) <= MAX_PATCH_BYTES else None)


def holds(home: Path, commit: str) -> bool:
    """Return True if the project is in a repository that has the commit."""
    return git(home, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def check_out(home: Path, commit: str, folder: Path, patch: bytes = b"") -> Path:
    """
    Check a commit out into a new folder, and apply a patch of :func:`uncommitted`. The project's own repository is only
    read: the folder is a clone that borrows its objects.

    :return: the project folder in the clone
    :raises BadConfigError: where git refuses, with its reason
    """
    top = _top(home)
    assert top is not None, "the commit is in its repository"
    _run(top, "clone", "--quiet", "--shared", "--no-checkout", str(top), str(folder))
    _run(folder, "checkout", "--quiet", "--detach", commit)
    if patch:
        _run(folder, "apply", "--binary", "--whitespace=nowarn", "-", stdin=patch)
    return folder / home.resolve().relative_to(top)


def _top(home: Path) -> Path | None:
    top = git(home, "rev-parse", "--show-toplevel")
    return None if top is None else Path(os.fsdecode(top.rstrip(b"\n")))


def _names(home: Path, *arguments: str) -> list[str]:
    listed = _run(home, *arguments)
    return sorted(name for name in os.fsdecode(listed).split("\0") if Path(name).suffix in CODE_SUFFIXES)


def _diff(top: Path, *arguments: str) -> bytes:
    # 1: there are differences; only --no-index says so.
    return _run(top, "--literal-pathspecs", *_DIFF, *_PREFIXES, *arguments, expected=(0, 1))


def git(folder: Path, *arguments: str) -> bytes | None:
    """Run git in a folder and return its output; None if git is not installed or exits with an error."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=60, check=False)
    except FileNotFoundError:  # no git on the machine
        return None
    return done.stdout if done.returncode == 0 else None


def _run(folder: Path, *arguments: str, stdin: bytes = b"", expected: Sequence[int] = (0,)) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], input=stdin, capture_output=True, timeout=600, check=False
    )
    if done.returncode not in expected:
        reason = done.stderr.decode(errors="replace").strip()
        raise BadConfigError(f"git {' '.join(arguments[:2])} in {folder} failed: {reason}")
    return done.stdout
