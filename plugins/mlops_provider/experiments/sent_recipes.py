"""Recipes that somebody has sent with an experiment: kept in the store by the server, and read there by its run."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import obstore
from obstore.store import ObjectStore

from mlops.contract.recipe_bundles import lay_over
from mlops.contract.refs import Artifact
from mlops_provider.committed import read_bytes
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.experiments.names import bundle_key
from mlops_provider.launchers.scratch import scratch_folder
from mlops_provider.operators.runs import SentRecipes
from mlops_provider.patience import store_errors


async def keep(store: ObjectStore, place: str, recipes: Mapping[str, bytes]) -> None:
    """
    Keep recipes where the experiment's run looks for them.

    :param place: of the experiment
    :param recipes: zips, by the recipe's folder
    """
    for data in recipes.values():
        # Written anew where it is there: what is old is removed with other results of experiments.
        await obstore.put_async(store, bundle_key(place, hashlib.sha256(data).hexdigest()), data)


@contextmanager
def sent_recipes(place: str, recipes: Mapping[str, str], deployment: Deployment) -> Iterator[SentRecipes | None]:
    """
    Read what was sent with an experiment, and lay it over the project for as long as its run needs that.

    :param place: of the experiment
    :param recipes: digests, by the recipe's folder
    :return: None where nothing was sent
    :raises StepFailedError: where it is gone or damaged
    :raises StepRetryableError: where the store does not answer
    """
    if not recipes:
        yield None
        return
    with store_errors(deployment.store, "code that was sent cannot be read"):
        store = store_of(deployment)
        found = {name: asyncio.run(_read(store, place, name, sha256)) for name, sha256 in recipes.items()}
        # It is in use again, also where the run has waited for long.
        asyncio.run(keep(store, place, {name: data for name, (_, data) in found.items()}))
    with scratch_folder("sent") as folder:
        try:
            contents = {name: data for name, (_, data) in found.items()}
            home = lay_over(deployment.home, contents, folder / "project")
        except ValueError as error:
            raise StepFailedError(f"the code that was sent cannot be used: {error}") from error
        yield SentRecipes(home=home, recipes={name: artifact for name, (artifact, _) in found.items()})


async def _read(store: ObjectStore, place: str, name: str, sha256: str) -> tuple[Artifact, bytes]:
    key = bundle_key(place, sha256)
    data = await read_bytes(store, key)
    if data is None or hashlib.sha256(data).hexdigest() != sha256:
        raise StepFailedError(
            f"{name} as it was sent, {key}, is {'gone' if data is None else 'damaged'}: send it again"
        )
    return Artifact(key=key, sha256=sha256, num_bytes=len(data)), data
