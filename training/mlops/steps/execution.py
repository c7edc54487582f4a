"""Run one step in this process: return what is committed, else work, commit, and write the result document."""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from mlops.contract.refs import INPUT, Artifact, Ref
from mlops.contract.step import (
    EXPERIMENTS,
    INTERRUPTED,
    STEPS,
    Failure,
    StepError,
    StepInput,
    scratch_parent,
    used_key,
    write_result,
)
from mlops.data.snapshots.deprecation import refuse_deprecated
from mlops.process import ProcessSettings
from mlops.steps import StepContext
from mlops.steps.mistakes import failure_of
from mlops.steps.ref_verification import verify_inputs
from mlops.steps.renewal import ONCE, as_told, check_whole, gone_from, input_bytes, put_back, work_of
from mlops.steps.sent_recipes import keep, with_sent_recipes
from mlops.store import Store

logger = logging.getLogger("mlops")


def find_committed(document: StepInput, deployment: ProcessSettings) -> Ref | None:
    """
    Find the ref of an earlier attempt at the same work, if all that it names is there; for an experiment also that of
    the pipeline's own run.

    If something is committed, this costs a listing of its place and, for what lies elsewhere, :meth:`Store.lacking`.

    :raises BadDataError: if there is none, and the input is not what its step committed, or the work would start from a
        deprecated snapshot
    """
    store = Store(deployment.store)
    done = store.committed(document.place)
    # A verdict is held against the champion of its own time.
    if done is None and document.run.experiment and document.step not in ONCE:
        shared = store.committed(document.pipelines_place)
        if shared is not None and not store.lacking(shared):
            logger.info("%s is already committed at %s: nothing to do", document.step, document.pipelines_place)
            return shared
    if done is not None:
        if not (gone := store.lacking(done)):
            logger.info("%s is already committed at %s: nothing to do", document.step, document.place)
            return done
        logger.warning(
            "%s is committed at %s, but %s: it is made again", document.step, document.place, gone_from(store, gone)
        )
    if deployment.rank == 0:  # for the whole gang
        verify_inputs(store, document)
    # What was committed before the deprecation is put back.
    if done is None and document.ref is not None and not document.reproduces and not _takes_back(document):
        refuse_deprecated(store, document.ref)
    return None


def _takes_back(document: StepInput) -> bool:
    """Return True if the step archives or rolls back a model, which is allowed with a deprecated snapshot."""
    return document.step == "promote" and document.config["action"] in ("archive", "rollback")


def execute(document: StepInput, deployment: ProcessSettings) -> Ref | None:
    """
    Run the step and commit its ref, or return the ref that is already committed.

    :return: the committed ref; None on the ranks other than 0
    :raises LostObjectsError: if something that was committed is gone, and cannot be made again
    """
    ref = _execute(document, deployment)
    if STEPS[document.step].hands_on and ref is not None and not (document.reproduces or document.run.experiment):
        importlib.import_module(f"mlops.steps.{document.step}").hand_on(ref, document, deployment)
    return ref


def _execute(document: StepInput, deployment: ProcessSettings) -> Ref | None:
    done = find_committed(document, deployment)
    store = Store(deployment.store)
    if deployment.rank == 0:
        _note_use(store, document.ref, done)
    if done is not None:
        return done
    deployment = with_sent_recipes(document, deployment)
    work = work_of(document) if document.run.experiment else document
    sent = document.recipes
    if (committed := store.committed(document.place)) is not None:
        document = as_told(store, committed, document)
        if document.step in ONCE:
            return put_back(store, committed, document, deployment.tracking_uri, sent)
        work = work_of(document)
    step = importlib.import_module(f"mlops.steps.{document.step}")
    with tempfile.TemporaryDirectory(prefix=f"{document.step}-", dir=scratch_parent()) as scratch:
        context = StepContext(input=work, deployment=deployment, store=store, scratch=Path(scratch))
        context.check_code()
        ref: Ref | None = step.run(context)
    if ref is None:
        assert deployment.rank != 0, f"step {document.step} returned no ref"
        return None
    assert isinstance(ref, STEPS[document.step].produces), f"step {document.step} returned a {type(ref).__name__}"
    made = _with_input(store, document, ref, sent)
    found = store.commit(made)
    if found != made:
        check_whole(store, found, made)
    return found


def _note_use(store: Store, *refs: Ref | None) -> None:
    """Of results of experiments, which are removed when nobody has used them for long."""
    for ref in refs:
        if ref is not None and ref.place.startswith(f"{EXPERIMENTS}/"):
            store.put(used_key(ref.place), b"", durable=False)


def _with_input(store: Store, document: StepInput, ref: Ref, sent: Mapping[str, Artifact]) -> Ref:
    """
    Add the input to a step's ref, and code that was sent: with them, and its parents, the work can be done again.

    :param sent: where that is: a copy that was kept may be what is gone
    """
    recipes = keep(store, document, sent)
    artifact = store.put_artifact(document.place, f"{INPUT}.json", input_bytes(document))
    return replace(ref, artifacts={**ref.artifacts, **recipes, INPUT: artifact})


class ExitedError(StepError):
    """Code of the recipe ended the process in the middle of the work."""


def _exited(end: SystemExit) -> ExitedError:
    where = traceback.extract_tb(end.__traceback__)[-1]
    code = "" if end.code is None else repr(end.code)
    return ExitedError(
        f"sys.exit({code}) was called in the middle of the step, in {where.name} ({where.filename}:{where.lineno})"
    )


def report(work: Callable[[StepInput, ProcessSettings], Ref | None]) -> Ref | Failure | None:
    """
    Do the work of the document that the last argument of the process names, and write its outcome to the result path,
    if it has one.

    :return: the outcome
    """
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    deployment = ProcessSettings.from_environment()
    sys.path.insert(0, str(deployment.home))  # include/ is imported from there
    document: StepInput | None = None
    outcome: Ref | Failure | None
    try:
        document = StepInput.load(Path(sys.argv[-1]).read_text())
        outcome = work(document, deployment)
    except Exception as error:
        # The launcher says the message; where the cause may be ours or the user's code, the way there helps too.
        if not isinstance(error, StepError):
            traceback.print_exc(file=sys.stdout)
        # Where recipes were sent, it is another one by now.
        outcome = failure_of(error, document, ProcessSettings.from_environment().home)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            raise
        outcome = Failure.of(_exited(end))
        traceback.print_exc(file=sys.stdout)
    if outcome is not None:
        write_result(deployment.result_path, outcome)
    return outcome
