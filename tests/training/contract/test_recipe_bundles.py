"""A recipe's code on its way to a run: what is packed comes out again, and nothing else gets in."""

from __future__ import annotations

import io
import os
import random
import warnings
import zipfile
from pathlib import Path

import pytest
from turns import SEED

from mlops.contract.code_files import code_digest
from mlops.contract.recipe_bundles import ZIP_DATE, deployed, lay_over, pack, unpack

FILES = {
    "model.py": b"import torch\n",
    "parts/layers.py": b"",
    "parts/deep/words.csv": b"a,\xff\n",
    "q.sql": b"SELECT 1",
}


def recipe(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def zipped(*entries: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a name is there twice
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name, ZIP_DATE), content, method)
    return buffer.getvalue()


def test_what_is_packed_comes_out_again(tmp_path: Path) -> None:
    folder = recipe(tmp_path / "include/taxi", FILES)
    data = pack(folder)
    recipe(folder, {".env": b"PASSWORD=x", "notes.md": b"", ".hidden/x.py": b"", "__pycache__/model.pyc": b""})
    assert pack(folder) == data, "of what is no code, and may be a secret, nothing is sent"
    assert unpack(data) == FILES


def test_equal_files_are_equal_bytes() -> None:
    chance = random.Random(SEED)
    for _ in range(200):
        names = {"/".join(chance.choices("abc", k=chance.randint(1, 3))) + ".py" for _ in range(chance.randint(1, 5))}
        files = {name: chance.randbytes(chance.randint(0, 50)) for name in sorted(names)}
        assert unpack(zipped(*files.items())) == files


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../model.py",
            "a/../../model.py",
            "/etc/model.py",
            "a//model.py",
            "./model.py",
            "a\\model.py",
            "a/./model.py",
        ),
        *(
            ".env.json/../x.py",
            ".git/hooks/x.py",
            "__pycache__/x.py",
            "model",
            "model.so",
            "model.py/",
            ".py",
            "..",
        ),
    ],
)
def test_no_file_gets_out_of_its_folder(name: str) -> None:
    """Broken: whoever may try a pipeline out would write where the worker may."""
    with pytest.raises(ValueError, match=r"no code file of a recipe|another program"):
        unpack(zipped(("model.py", b""), (name, b"x")))


def test_bytes_that_are_none_are_refused() -> None:
    chance = random.Random(SEED)
    for size in range(200):
        with pytest.raises(ValueError, match="it is no zip|there is no file in it"):
            unpack(chance.randbytes(size))


def test_a_zip_that_is_changed_is_refused_or_is_another() -> None:
    """Broken: a message would be a traceback, or files would come out that nobody has looked at."""
    chance, whole = random.Random(SEED), zipped(*FILES.items())
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << chance.randrange(8)
        try:
            found = unpack(bytes(data))
        except ValueError:
            continue
        assert zipped(*found.items()) == bytes(data)


def test_a_small_zip_is_no_large_recipe() -> None:
    """Broken: some kilobytes would fill the memory of the server, or the disk of the worker."""
    with pytest.raises(ValueError, match="compressed"):
        unpack(zipped(("model.py", b"0" * 10_000_000), method=zipfile.ZIP_DEFLATED))
    data = bytearray(zipped(("m.py", b"x" * 5000), *((f"m{number}.py", b"") for number in range(10))))
    end = data.rindex(b"PK\x05\x06")
    first = int.from_bytes(data[end + 16 : end + 20], "little")
    place = first
    while place < end:  # all entries say that they are as long as the first
        data[place + 20 : place + 28] = (5000).to_bytes(4, "little") * 2
        place += 46 + int.from_bytes(data[place + 28 : place + 30], "little")
    with pytest.raises(ValueError, match="longer than itself"):
        unpack(bytes(data))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "there is no file in it"),
        ([("model.py", b"1"), ("model.py", b"2")], "another program"),
        ([("model.py", b""), ("data.bin", b"")], "'data.bin' in it is no code file"),
        ([("a.py", b""), ("a.py/b.py", b"")], "'a.py' in it is both a file and a folder"),
        ([(f"{'a' * 300}.py", b"")], "in it is no code file"),
    ],
)
def test_what_is_wrong_is_said(entries: list[tuple[str, bytes]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        unpack(zipped(*entries))


def test_a_recipe_stands_in_for_that_of_the_project(tmp_path: Path) -> None:
    home = tmp_path / "home"
    recipe(home / "include/taxi", {"model.py": b"old", "only_there.py": b""})
    recipe(home / "include/other", {"model.py": b"of another"})
    recipe(home / "data", {"trips.csv": b"1"})
    recipe(home / ".git", {"config.cfg": b""})
    before = code_digest([home])
    project = lay_over(home, {"include/taxi": pack(recipe(tmp_path / "mine", FILES))}, tmp_path / "project")
    assert code_digest([project / "include/taxi"]) == code_digest([tmp_path / "mine"])
    assert not (project / "include/taxi/only_there.py").exists(), "what was removed is not imported"
    assert (project / "include/other/model.py").read_bytes() == b"of another"
    assert (project / "data/trips.csv").read_bytes() == b"1"
    assert not (project / ".git").exists(), "it has other recipes than its commit"
    (project / "include/taxi/model.py").write_bytes(b"changed by a step")
    assert code_digest([home]) == before, "the deployment's own stays"
    assert (deployed(project), deployed(home)) == (home, home)


@pytest.mark.parametrize(
    "name", ["include", "include/..", "include/a/b", "plugins/x", "../include/x", "include/a.b", ""]
)
def test_only_recipes_are_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / "home").mkdir()
    with pytest.raises(ValueError, match="no folder of a recipe"):
        lay_over(tmp_path / "home", {name: zipped(("model.py", b""))}, tmp_path / "project")
    assert os.listdir(tmp_path) == ["home"]
