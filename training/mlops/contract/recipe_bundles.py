"""A recipe's code as one file: how it is packed, and laid over a project. Standard library only."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from mlops.contract.code_files import CODE_SUFFIXES, code_files, is_passed_over
from mlops.contract.extensions import RECIPES

MOST_BYTES: Final = 8 << 20
"""Of all recipes that are sent with one request."""
DEPLOYED: Final = ".deployed"
"""In a project that recipes were laid over: a link to the project as it is deployed."""
_REPOSITORY: Final = ".git"
"""Has other recipes than the project has then."""
_LONGEST: Final = 255
"""Bytes of a file's name, on most disks."""
ZIP_DATE: Final = (1980, 1, 1, 0, 0, 0)
"""The oldest one that a zip can hold: with it, equal files give equal bytes."""


def pack(folder: Path) -> bytes:
    """
    Return the code files of a recipe as a zip. Equal files give equal bytes.

    :param folder: ``include/<name>``
    """
    return _packed({file.relative_to(folder).as_posix(): file.read_bytes() for file in code_files(folder)})


def _packed(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    # Stored, not deflated: the bytes must not depend on the version of zlib.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, ZIP_DATE), content)
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, bytes]:
    """
    Return the files of a recipe, by their paths below its folder.

    :raises ValueError: where these are not the bytes of :func:`pack`: nothing else is taken from strangers
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if any(each.compress_type != zipfile.ZIP_STORED for each in entries):
                raise ValueError("a file in it is compressed")
            # Entries may share bytes, and be more together than there is memory.
            if sum(each.file_size for each in entries) > len(data):
                raise ValueError("its files are longer than itself")
            files = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, OSError) as error:
        raise ValueError(f"it is no zip: {error}") from error
    if strange := next((name for name in files if not _is_code(name)), None):
        raise ValueError(f"{strange!r} in it is no code file of a recipe")
    if not files:
        raise ValueError("there is no file in it")
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    if both := next((name for name in files if name in folders), None):
        raise ValueError(f"{both!r} in it is both a file and a folder")
    if _packed(files) != data:
        raise ValueError("it was packed by another program, or another release")
    return files


def _is_code(name: str) -> bool:
    path = PurePosixPath(name)
    return (
        path.suffix in CODE_SUFFIXES
        and str(path) == name
        and not path.is_absolute()
        and not any(map(is_passed_over, path.parts[:-1]))
        and ".." not in path.parts
        and not {"\\", "\0"} & {*name}
        and all(len(os.fsencode(part)) <= _LONGEST for part in path.parts)
    )


def lay_over(home: Path, recipes: Mapping[str, bytes], folder: Path) -> Path:
    """
    Make a project out of links to another one, in which some recipes are others.

    :param home: the project as it is deployed; only read
    :param recipes: zips of :func:`pack`, by the recipe's folder ``include/<name>``
    :param folder: that is made
    :return: the same folder
    :raises ValueError: where one of them is none
    """
    files = {name: unpack(data) for name, data in recipes.items()}
    if strange := [name for name in files if not _is_recipe(name)]:
        raise ValueError(f"{strange[0]!r} is no folder of a recipe, {RECIPES}/NAME")
    (folder / RECIPES).mkdir(parents=True)
    (folder / DEPLOYED).symlink_to(home)
    for path in home.iterdir():
        if path.name not in (RECIPES, DEPLOYED, _REPOSITORY):
            (folder / path.name).symlink_to(path)
    for path in (home / RECIPES).iterdir() if (home / RECIPES).is_dir() else ():
        if f"{RECIPES}/{path.name}" not in files:
            (folder / RECIPES / path.name).symlink_to(path)
    for name, contents in files.items():
        for inner, content in contents.items():
            (folder / name / inner).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / inner).write_bytes(content)
    return folder


def _is_recipe(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and parts[0] == RECIPES and parts[1].isidentifier()


def deployed(home: Path) -> Path:
    """Return the project as it is deployed, of one that recipes were laid over; of another one itself."""
    link = home / DEPLOYED
    return link.readlink() if link.is_symlink() else home
