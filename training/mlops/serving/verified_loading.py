"""
Load a model version only if its files are those that were registered.

``mlflow.pyfunc.load_model("models:/...")`` runs whatever code MLflow holds. Here the files are fetched, compared with
the signature that the registration made, and only then loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mlops.contract.refs import digest_of
from mlops.contract.step import BadConfigError, BadDataError
from mlops.signing.envelope import EnvelopeError
from mlops.signing.packages import SIGNATURE_TAG, PackageSeal, package_key
from mlops.store import Store
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import ModelRegistry
from mlops.tracking.stored_model import LoadedModel, fetch_files, load_folder

_WRITTEN_BY_MLFLOW: Final = frozenset({"registered_model_meta"})
"""Files that MLflow adds to what it hands out."""


class ForgedModelError(BadDataError):
    """The files of a version are not those that were registered."""


def files_of(folder: Path) -> list[list[str]]:
    """Return names and SHA-256 of the files of a package, in order of their names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in files}
    return [
        [name, hashlib.sha256(path.read_bytes()).hexdigest()]
        for name, path in named.items()
        if name not in _WRITTEN_BY_MLFLOW
    ]


def load_verified(tracking_uri: str, model: str, version: str, folder: Path, *, trusted: Sequence[str]) -> LoadedModel:
    """
    Fetch a version, check it, and load it as MLflow does.

    :param version: a number or an alias
    :param folder: folder for its files, which stay for as long as the model is used; empty or missing
    :param trusted: public keys, as ``mlops keys show`` prints them; those of people sign no packages
    :raises ForgedModelError: if a file is not what was registered; none of its code has been run then
    """
    fetch_verified(tracking_uri, model, version, folder, trusted=trusted)
    return load_folder(folder)


def fetch_verified(
    tracking_uri: str, model: str, version: str, folder: Path, *, trusted: Sequence[str], store: Store | None = None
) -> str:
    """
    Fetch a version's files and check them.

    :param version: a number or an alias
    :param store: store that has the signature too, and the list of the files, to say which one differs
    :return: the version's number
    :raises ForgedModelError: where a file is not what was registered; the fetched ones stay for whoever looks into it
    """
    registry = ModelRegistry(client=connect(tracking_uri), name=model)
    if not version.isdecimal():
        found = registry.version_of_alias(version)
        if found is None:
            raise BadConfigError(f"there is no model {model!r} with an alias {version!r}")
        version = found
    if folder.exists() and any(folder.iterdir()):
        raise BadConfigError(f"{folder} is not empty: name a folder for the files of {model}/{version}")
    seal = _seal(registry, version, trusted, store)
    fetch_files(registry.client, registry.name, version, folder)
    files = files_of(folder)
    if digest_of(files) != seal.sha256:
        raise ForgedModelError(
            f"{model}/{version} is not what was registered: {_difference(files, seal, store)}. Nothing of it was "
            f"loaded; what MLflow has is in {folder}. Take it out of production (mlops models rollback {model}), and "
            "find out who could write MLflow's artifacts"
        )
    return version


def _seal(registry: ModelRegistry, version: str, trusted: Sequence[str], store: Store | None) -> PackageSeal:
    key, named = package_key(registry.name, version), f"{registry.name}/{version}"
    if store is not None and store.exists(key):
        signature, where = store.get(key), f"{key} in {store.uri}"
    else:
        signature, where = registry.tags_of(version).get(SIGNATURE_TAG, "").encode(), f"the tag {SIGNATURE_TAG}"
    if not signature:
        raise ForgedModelError(
            f"{named} is not signed: it was registered without [mlops] release_key or by other means, or its tag "
            f"{SIGNATURE_TAG} was removed"
        )
    try:
        seal = PackageSeal.unsealed(signature, trusted)
    except EnvelopeError as error:
        raise ForgedModelError(f"the signature of {named} ({where}) does not hold: {error}") from error
    if (seal.model, seal.version) != (registry.name, version):
        raise ForgedModelError(f"the signature of {named} ({where}) is that of {seal.model}/{seal.version}")
    return seal


def _difference(found: Sequence[Sequence[str]], seal: PackageSeal, store: Store | None) -> str:
    if store is None or not store.exists(seal.files):
        return f"the digest of its files is {digest_of(found)[:12]}..., and was {seal.sha256[:12]}..."
    there = {file[0]: file[1] for file in found}
    wanted: dict[str, str] = dict(json.loads(store.get(seal.files)))
    names = {
        "changed": {name for name in there.keys() & wanted.keys() if there[name] != wanted[name]},
        "added": there.keys() - wanted.keys(),
        "missing": wanted.keys() - there.keys(),
    }
    said = [f"{what}: {', '.join(sorted(which))}" for what, which in names.items() if which]
    return "; ".join(said) or f"the list {seal.files} was changed too"
