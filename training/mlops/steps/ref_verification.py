"""Compare the refs that a step was given with those in the store: a ref from outside is not trusted until then."""

from __future__ import annotations

from mlops.contract.ref_difference import distrust
from mlops.contract.refs import CheckpointRef, ModelVersionRef, Ref, ReportRef
from mlops.contract.step import EXPERIMENTS, BadDataError, StepInput
from mlops.store import Store


class ChangedRefError(BadDataError):
    """A ref is not what its step committed: trying again cannot help."""


def verify_inputs(store: Store, document: StepInput) -> None:
    """
    Check the refs of a step's input before the step acts on them.

    :raises ChangedRefError: naming the ref's kind and the first field that differs
    :raises BadDataError: where a pipeline's own run would go on from an experiment
    """
    if not (document.run.experiment or document.reproduces):
        _refuse_experiments(document)
    if document.ref is not None:
        rollback = document.step == "promote" and document.config["action"] == "rollback"
        verify(store, _committed(document.ref) if rollback else document.ref, f"the input of {document.step}")
    for name, baseline in document.baselines.items():
        verify(store, _committed(baseline), f"the baseline {name!r} of {document.step}")
    _verify_start(document)


def _refuse_experiments(document: StepInput) -> None:
    """
    Check that a pipeline's own run goes on from its own results, or from the experiment that it was asked to judge.

    :raises BadDataError: if another experiment made one of them
    """
    if document.ref is None:
        return
    adopted = _folder(document.run.adopts) if document.ref.place == document.run.adopts else None
    for link in document.ref.lineage():
        is_experiments = link.place.startswith(f"{EXPERIMENTS}/")
        if isinstance(link, ReportRef) and not is_experiments:
            return  # the evaluation, a step of the pipeline, was allowed to judge what it judged
        if is_experiments and _folder(link.place) != adopted:
            raise BadDataError(
                f"the input of {document.step} comes from the experiment {link.place}; a pipeline's own run goes on "
                "from one only where it was asked to judge it: mlops register TRAINING"
            )


def _folder(place: str) -> str:
    """Return the folder of an experiment, from the place of one of its steps."""
    return "/".join(place.split("/")[:3])


def _verify_start(document: StepInput) -> None:
    """
    Check that the weights to start from are those of the version that was looked up.

    :raises ChangedRefError: if they are others
    """
    train = document.config.get("train", document.config)
    found = (train.get("initialise") or {}).get("found")
    if found is None or (version := document.baselines.get("initialise")) is None:
        return
    weights = version.ancestor(CheckpointRef).artifacts["weights"]
    if (found["key"], found["sha256"]) != (weights.key, weights.sha256):
        raise ChangedRefError(
            f"train.initialise.found of {document.step} is {found['key']}, and the weights of the version that it "
            f"names are {weights.key}. Clear the task, so that it looks the version up again"
        )


def verify(store: Store, ref: Ref, what: str) -> None:
    """
    Compare a ref, its parent, and so on back to the dataset with the refs that were committed at their places.

    :param what: the ref's role, for the message
    :raises ChangedRefError: naming the ref's kind and the first field that differs
    """
    for link in ref.lineage():
        committed = store.committed(link.place) if link.place else None
        if (why := distrust(link, committed, what, store.uri)) is not None:
            raise ChangedRefError(why)


def _committed(ref: Ref) -> Ref:
    """
    Return the ref to look up: a version from the registry has no place, and only says which one is meant, but its
    report has one.
    """
    return ref.parent if isinstance(ref, ModelVersionRef) and not ref.place else ref
