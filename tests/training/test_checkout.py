from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mlops import checkout
from mlops.checkout import check_out, holds, uncommitted
from mlops.contract.code_files import code_digest


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A project in a folder of a repository, committed."""
    home = tmp_path / "repository/project"
    (home / "include/toy").mkdir(parents=True)
    (home / "include/toy/model.py").write_text("one = 1\n")
    (home / "include/toy/old name.py").write_text("old = 1\n")
    (home / "notes.py").write_text("notes = 1\n")
    (home / ".gitignore").write_text("*.csv\n")
    git(tmp_path / "repository", "init", "--quiet")
    git(tmp_path / "repository", "add", "--all")
    git(tmp_path / "repository", "commit", "--quiet", "--message", "A project")
    return home


def change(home: Path) -> None:
    (home / "include/toy/model.py").write_text("one = 2\n")
    (home / "include/toy/old name.py").unlink()
    (home / "include/toy/new.py").write_text("no newline = 'ü'")
    (home / "include/toy/deeper").mkdir()
    (home / "include/toy/deeper/table.json").write_bytes(b"\r\n[1]\x00\r\n")


def test_a_commit_and_its_patch_are_the_code_that_ran(home: Path, tmp_path: Path) -> None:
    """Broken: a reproduction would run other code than the training did, or change the user's repository."""
    commit = git(home, "rev-parse", "HEAD")
    change(home)
    status = git(home, "status", "--porcelain")
    changes = uncommitted(home)
    assert changes.files == (
        "project/include/toy/model.py",
        "project/include/toy/old name.py",
        "project/include/toy/deeper/table.json",
        "project/include/toy/new.py",
    )
    assert changes.patch
    assert holds(home, commit)
    again = check_out(home, commit, tmp_path / "again", changes.patch)
    assert again == tmp_path / "again/project"
    assert code_digest([again / "include"]) == code_digest([home / "include"])
    assert not (again / "include/toy/old name.py").exists()
    assert git(home, "status", "--porcelain") == status
    assert git(home, "worktree", "list").count("\n") == 0


def test_the_settings_of_a_users_git_do_not_change_the_patch(home: Path) -> None:
    """Broken: on a machine with colours or a diff tool in its settings, patches would not apply."""
    change(home)
    before = uncommitted(home)
    for name, value in {
        "color.ui": "always",
        "diff.noprefix": "true",
        "diff.external": "false",
        "diff.relative": "true",
        "core.quotePath": "false",
    }.items():
        git(home, "config", name, value)
    assert uncommitted(home) == before


def test_nothing_but_the_projects_code_is_patched(home: Path, tmp_path: Path) -> None:
    """Broken: passwords and data that lie about would be copied into the store."""
    (tmp_path / "outside.py").write_text("secret = 1\n")
    (home / "include/toy/link.py").symlink_to(tmp_path / "outside.py")
    (home / "include/toy/key.pem").write_text("secret")
    (home / "include/toy/rows.csv").write_text("secret")
    (home / "notes.py").write_text("secret = 1\n")
    (home.parent / "elsewhere.py").write_text("secret = 1\n")
    assert uncommitted(home) == checkout.Changes(files=(), patch=b"")


def test_too_large_a_change_is_named_and_not_kept(home: Path) -> None:
    """Broken: a stray table would be copied with each night's model."""
    (home / "include/toy/rows.json").write_text("1" * (checkout.MAX_PATCH_BYTES + 1))
    assert uncommitted(home) == checkout.Changes(files=("project/include/toy/rows.json",), patch=None)


def test_outside_of_a_repository_there_is_nothing_to_patch(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    assert uncommitted(tmp_path) == checkout.Changes(files=(), patch=b"")
    assert not holds(tmp_path, "0" * 40)
