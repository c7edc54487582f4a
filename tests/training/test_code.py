from __future__ import annotations

import importlib.util
import os
import py_compile
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from mlops.code import bundle, load_attribute, load_bundled, recipe_folder
from mlops.contract.step import BadConfigError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with one recipe, whose modules are forgotten afterwards."""
    recipe = tmp_path / "project/include/toy"
    (recipe / "parts").mkdir(parents=True)
    (recipe / "model.py").write_text("from .parts.scale import FACTOR\n\ndef build(): return FACTOR\n")
    (recipe / "parts/scale.py").write_text("FACTOR = 2\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    # include is a namespace package: other tests may have loaded it from elsewhere.
    monkeypatch.delitem(sys.modules, "include", raising=False)
    yield tmp_path / "project"
    for name in [name for name in sys.modules if name.startswith(("include.toy", "_bundle_"))]:
        del sys.modules[name]


def call(function: object) -> object:
    return cast(Callable[[], object], function)()


def test_bundled_code_survives_a_changed_checkout(home: Path, tmp_path: Path) -> None:
    """Otherwise the champion would be run with the candidate's code."""
    data = bundle(recipe_folder(home, "include.toy.model:build"))
    (home / "include/toy/parts/scale.py").write_text("FACTOR = 30\n")

    live = load_attribute("include.toy.model:build", home)
    stored = load_bundled(data, "include.toy.model:build", tmp_path / "scratch")

    assert (call(live), call(stored)) == (30, 2)
    assert sys.modules["include.toy.model"].build is live


def test_the_code_that_runs_is_the_code_that_is_there(home: Path) -> None:
    """Otherwise byte code of an older file of that size and time runs, and the new file is recorded as what ran."""
    file = home / "include/toy/parts/scale.py"
    program = "import sys, pathlib; from mlops.code import load_attribute as load; " + (
        "print(load('include.toy.model:build', pathlib.Path(sys.argv[1]))())"
    )

    def run(where: str) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.check_output(
            [sys.executable, "-c", program, where], env=environment, cwd=home, text=True
        ).strip()

    byte_code = Path(importlib.util.cache_from_source(str(file)))
    byte_code.parent.mkdir()
    os.utime(file, (1e9, 1e9))
    py_compile.compile(str(file), str(byte_code), doraise=True)
    file.write_text("FACTOR = 3\n")
    os.utime(file, (1e9, 1e9))
    assert run(str(home)) == "3"
    assert run(".") == "3", "also where the project's folder is given by a relative path"


def test_two_bundles_live_side_by_side(home: Path, tmp_path: Path) -> None:
    """Otherwise candidate and champion could not be compared in one process."""
    first = bundle(home / "include/toy")
    (home / "include/toy/parts/scale.py").write_text("FACTOR = 30\n")
    second = bundle(home / "include/toy")

    builds = [load_bundled(data, "include.toy.model:build", tmp_path / "scratch") for data in (first, second)]

    assert [call(build) for build in builds] == [2, 30]


def test_bundle_with_package_init(home: Path, tmp_path: Path) -> None:
    """A recipe that is a regular package must work like one without __init__.py."""
    (home / "include/toy/__init__.py").write_text("NAME = 'toy'\n")
    (home / "include/toy/model.py").write_text("from . import NAME\n")

    assert load_bundled(bundle(home / "include/toy"), "include.toy.model:NAME", tmp_path / "scratch") == "toy"


def test_equal_files_give_equal_bytes(home: Path) -> None:
    """Otherwise unchanged code would count as a new version of the features."""
    folder = home / "include/toy"
    before = bundle(folder)
    for file in folder.rglob("*.py"):
        file.write_text(file.read_text())
    (folder / "notes.md").write_text("no code")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/model.py").write_text("no code")

    assert bundle(folder) == before


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param(
            "from include.other.features import X\n", r"model.py:1: imports 'include.other.features'", id="from"
        ),
        pytest.param("import os\nimport include.toy.parts\n", r"model.py:2: imports .* import relatively", id="import"),
        pytest.param("def build(:\n", r"model.py:1: invalid syntax", id="syntax"),
    ],
)
def test_a_recipe_that_cannot_be_run_from_its_bundle_is_refused(home: Path, source: str, message: str) -> None:
    """Otherwise the stored code would mix with the checkout of another day."""
    (home / "include/toy/model.py").write_text(source)

    with pytest.raises(BadConfigError, match=message):
        bundle(home / "include/toy")


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        pytest.param(
            "model.py",
            "import os\nfrom ..common.scale import K\n",
            r"toy/model.py:2: imports ..common.scale, .* neither in the run key.* Move it into this folder",
            id="relative",
        ),
        pytest.param("parts/scale.py", "from ... import common\n", r"scale.py:1: imports ...common, ", id="deeper"),
        pytest.param(
            "parts/scale.py", "import include.common.scale\n", r"scale.py:1: imports 'include.com", id="absolute"
        ),
        pytest.param("model.py", "from include import common\n", r"model.py:1: imports 'include.common'", id="package"),
    ],
)
def test_code_from_outside_of_the_recipe_is_refused(home: Path, module: str, source: str, message: str) -> None:
    """Broken: it could be changed, and what the old code made would still be returned for it."""
    (home / "include/common").mkdir()
    (home / "include/common/scale.py").write_text("K = 1\n")
    (home / "include/toy" / module).write_text(source)

    for load in (lambda: load_attribute("include.toy.model:build", home), lambda: bundle(home / "include/toy")):
        with pytest.raises(BadConfigError, match=message):
            load()


def test_a_folder_elsewhere_that_a_recipe_links_to_is_refused(home: Path, tmp_path: Path) -> None:
    """Broken: Python imports it, but a change of it would be no change of the recipe."""
    (tmp_path / "common").mkdir()
    (home / "include/toy/common").symlink_to(tmp_path / "common")

    with pytest.raises(BadConfigError, match=r"include/toy/common: is a link to a folder, .* Copy what"):
        load_attribute("include.toy.model:build", home)


def test_a_recipe_may_import_from_itself(home: Path) -> None:
    """Broken: a pipeline that only reads data would be refused for imports that its run key covers."""
    (home / "include/toy/parts/both.py").write_text("from ..model import build\nfrom include.toy.parts import scale\n")
    (home / "include/toy/..data").symlink_to(home / "include/toy/parts")

    assert call(load_attribute("include.toy.parts.both:build", home)) == 2


@pytest.mark.parametrize(
    ("import_path", "message"),
    [
        pytest.param(
            "include.toy.modell:build", "cannot import 'include.toy.modell'.*ModuleNotFoundError", id="module"
        ),
        pytest.param("include.toy.model:biuld", "no 'biuld'; did you mean 'build'", id="name"),
        pytest.param("include.toy.broken:build", "RuntimeError: no licence", id="raises"),
    ],
)
def test_an_import_that_fails_names_path_and_fix(home: Path, import_path: str, message: str) -> None:
    """The user must learn from the message which path is wrong and what would be right."""
    (home / "include/toy/broken.py").write_text("raise RuntimeError('no licence')\n")

    with pytest.raises(BadConfigError, match=message):
        load_attribute(import_path, home)


@pytest.mark.parametrize(
    ("import_path", "message"),
    [
        pytest.param("model:build", "not in a recipe", id="top-level"),
        pytest.param("include.nothing.model:build", "there is no folder .*include/nothing", id="no folder"),
    ],
)
def test_recipe_folder_refuses_a_path_without_recipe(home: Path, import_path: str, message: str) -> None:
    """Otherwise the whole checkout, or nothing, would be stored as the recipe."""
    with pytest.raises(BadConfigError, match=message):
        recipe_folder(home, import_path)
