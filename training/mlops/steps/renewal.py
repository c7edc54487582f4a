"""
Repeat a step's work to the same bits, if objects that it committed are gone.

Every object's name holds its digest, so that a step which is done again at its own place puts back what it makes to
the same bits, and can replace nothing else; its ``ref.json`` stays. Whatever comes out otherwise is an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from mlops.contract.refs import INPUT, Artifact, Ref, ReportRef, canonical_json
from mlops.contract.step import BadDataError, StepInput
from mlops.steps.sent_recipes import artifact_name, kept_with
from mlops.store import REF_FILE, Store

ONCE: Final = frozenset({"evaluate", "register", "promote"})
"""Steps whose results depend on the time of their run: today other results would come out, or other models be live."""


_IN_USE: Final[Mapping[str, Mapping[str, None]]] = {"features": {"online": None}, "predict": {"output": None}}
"""Settings by which others than a pipeline get what a step makes, by step; switched off."""


class LostObjectsError(BadDataError):
    """Objects of a committed ref are gone, and its step does not make them again."""


def input_bytes(document: StepInput) -> bytes:
    """Return the bytes of the artifact :data:`~mlops.contract.refs.INPUT`: all that the work follows from."""
    return canonical_json(json.loads(replace(kept_with(document), sections={}).dump()))


def as_told(store: Store, committed: Ref, document: StepInput) -> StepInput:
    """
    Return the input of the attempt that committed: its try number is part of its results.

    :param document: input of this attempt
    """
    artifact = committed.artifacts.get(INPUT)
    if artifact is None:
        return document
    if store.size(artifact.key) == artifact.num_bytes:
        return StepInput.load(store.read(artifact).decode())
    for number in range(document.run.try_number, 0, -1):
        earlier = replace(document, run=replace(document.run, try_number=number))
        if hashlib.sha256(input_bytes(earlier)).hexdigest() == artifact.sha256:
            return earlier
    return document


def work_of(document: StepInput) -> StepInput:
    """Return the work to repeat: the same, but for what others use just now, which is left alone."""
    return replace(document, config={**document.config, **_IN_USE.get(document.step, {})})


def put_back(store: Store, committed: Ref, document: StepInput, tracking_uri: str, sent: Mapping[str, Artifact]) -> Ref:
    """
    Restore missing objects that have a copy: the step's input is known, and MLflow has an evaluation's files.

    :param sent: recipes that were sent with this attempt
    :raises LostObjectsError: if something is still gone
    """
    recipes = {artifact_name(recipe): artifact for recipe, artifact in sent.items()}
    for artifact in store.lacking(committed):
        name = next(name for name, other in committed.artifacts.items() if other == artifact)
        if name == INPUT:
            data: bytes | None = input_bytes(document)
        elif name in recipes:
            data = store.read(recipes[name])
        else:
            data = _copy_in_tracking(committed, name, tracking_uri)
        if data is not None and hashlib.sha256(data).hexdigest() == artifact.sha256:
            store.put(artifact.key, data)
    check_whole(store, committed, None)
    return committed


def _copy_in_tracking(committed: Ref, name: str, tracking_uri: str) -> bytes | None:
    from mlops.tracking.connection import connect
    from mlops.tracking.run import EVALUATION, reopen_run

    if not isinstance(committed, ReportRef) or name not in EVALUATION:
        return None
    return reopen_run(connect(tracking_uri), committed.parent.tracking_run).read(EVALUATION[name])


def check_whole(store: Store, committed: Ref, made: Ref | None) -> None:
    """
    Check that no object of a committed ref is missing.

    :param committed: ref that stays, whatever was made
    :param made: ref of the repeated work; None if the step is not repeated
    :raises LostObjectsError: if something that was committed is gone
    """
    if not (gone := store.lacking(committed)):
        return
    if made is None:
        why = "this step is not done again, for its result would be another one today"
    else:
        others = [
            f"{name} is now {other.sha256[:12]}... and was {artifact.sha256[:12]}..."
            for name, artifact in committed.artifacts.items()
            if (other := made.artifacts.get(name)) is not None and other.sha256 != artifact.sha256
        ]
        why = f"done again, the step made something else: {', '.join(others) or 'without these objects'}"
    raise LostObjectsError(
        f"{gone_from(store, gone)}, which was committed at {committed.place}; {why}. Nothing was replaced. Restore it "
        f"from a backup (SHA-256 {gone[0].sha256}). To go on with a new result instead, delete {committed.place}/"
        f"{REF_FILE} and clear this task and those after it",
        objects=[artifact.key for artifact in gone],
    )


def gone_from(store: Store, gone: Sequence[Artifact]) -> str:
    """Return the beginning of a sentence about missing objects."""
    more = f" and {len(gone) - 1} more objects are" if len(gone) > 1 else " is"
    return f"{gone[0].key}{more} gone from {store.uri}, or cut short"
