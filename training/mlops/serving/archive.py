"""
The package of a model in the store: all but its weights, which the checkpoint has.

It is made once, when the model has passed, and both registered and judged by later: whatever this library is by then,
the files are the same.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Final

from mlops.contract.recipe_bundles import ZIP_DATE
from mlops.contract.refs import CheckpointRef, ReportRef
from mlops.contract.step import BadConfigError, BadDataError
from mlops.store import Store
from mlops.tracking.run import MODEL_PACKAGE

_WEIGHTS: Final = "weights.path"
"""Entry that says which file the weights are."""


def archived(folder: Path, checkpoint: CheckpointRef) -> bytes:
    """
    Return a package as a zip without the weights. Equal folders give equal bytes.

    :param folder: folder that :func:`mlops.serving.package.package` made
    """
    buffer, weights = io.BytesIO(), checkpoint.artifacts["weights"].sha256
    # Stored, not deflated: the bytes must not depend on the version of zlib.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            name, data = path.relative_to(folder).as_posix(), path.read_bytes()
            if hashlib.sha256(data).hexdigest() == weights:
                name, data = _WEIGHTS, name.encode()
            archive.writestr(zipfile.ZipInfo(name, ZIP_DATE), data)
    return buffer.getvalue()


def unarchived(store: Store, report: ReportRef, scratch: Path) -> Path:
    """
    Return the folder of a report's package, with the weights. No code of it is run.

    :param scratch: folder to make it in
    :raises BadDataError: where the package names a place for its weights that is not its own
    :raises DamagedObjectError: where a stored object is missing, or not the one that was written
    :raises BadConfigError: where the report has none
    """
    if (artifact := report.artifacts.get(MODEL_PACKAGE)) is None:
        raise BadConfigError(
            f"the evaluation at {report.place} has no package of its model: it was made by an earlier release. Trigger "
            "the night with another setting (a seed, say), so that it is made again"
        )
    folder = scratch / f"package-{report.digest()[:12]}"
    with zipfile.ZipFile(io.BytesIO(store.read(artifact))) as archive:
        archive.extractall(folder)
        own = {(folder / name).resolve() for name in archive.namelist()}
    named = folder / _WEIGHTS
    name = named.read_text()
    target = (folder / name).resolve()
    # Who may write the store may write a package: it must choose no file of this machine, nor of its own code.
    if target in own or target.is_dir() or not target.is_relative_to(folder.resolve()):
        raise BadDataError(
            f"the package {artifact.key} in {store.uri} puts its weights at {name!r}, which is no new file in its own "
            "folder: somebody has changed it. Trigger the night with another setting (a seed, say), so that it is made "
            "again"
        )
    target.write_bytes(store.read(report.parent.artifacts["weights"]))
    named.unlink()
    return folder
