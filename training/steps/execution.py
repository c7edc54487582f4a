"""Run one step in this process: find what is committed, else work, commit, and write the result document."""

from __future__ import annotations

import importlib
import json
import logging
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mlops_provider.refs import INPUT, Ref, canonical_json
from mlops_provider.step import STEPS, Failure, StepError, StepInput, code_digest, scratch_parent, write_result
from training.data.deprecation import refuse_deprecated
from training.process import Deployment
from training.steps import StepContext
from training.store import Store

logger = logging.getLogger("training")


def find_committed(document: StepInput, deployment: Deployment) -> Ref | None:
    """
    The ref of an earlier attempt at the same work.

    :raises BadDataError: where there is none, and the work would start from a deprecated snapshot
    """
    store = Store(deployment.store)
    done = store.committed(document.place)
    if done is not None:
        logger.info("%s is already committed at %s: nothing to do", document.step, document.place)
    elif document.ref is not None and not document.reproduces and not _takes_back(document):
        refuse_deprecated(store, document.ref)
    return done


def _takes_back(document: StepInput) -> bool:
    """Whether it is about getting rid of what was made of the snapshot."""
    return document.step == "promote" and document.config["action"] in ("archive", "rollback")


def execute(document: StepInput, deployment: Deployment) -> Ref | None:
    """
    Run the step and commit its ref, or return the ref that is already committed.

    :return: the committed ref; None on the ranks other than 0
    """
    if (done := find_committed(document, deployment)) is not None:
        return done
    _check_code(document, deployment)
    store = Store(deployment.store)
    step = importlib.import_module(f"training.steps.{document.step}")
    with tempfile.TemporaryDirectory(prefix=f"{document.step}-", dir=scratch_parent()) as scratch:
        context = StepContext(input=document, deployment=deployment, store=store, scratch=Path(scratch))
        ref: Ref | None = step.run(context)
    if ref is None:
        assert deployment.rank != 0, f"step {document.step} returned no ref"
        return None
    assert isinstance(ref, STEPS[document.step].produces), f"step {document.step} returned a {type(ref).__name__}"
    return store.commit(_with_input(store, document, ref))


def _with_input(store: Store, document: StepInput, ref: Ref) -> Ref:
    """What the step was told belongs to what it made: with it, and its parents, the work can be done again."""
    told = store.put_artifact(document.place, f"{INPUT}.json", canonical_json(json.loads(document.dump())))
    return replace(ref, artifacts={**ref.artifacts, INPUT: told})


def _check_code(document: StepInput, deployment: Deployment) -> None:
    """:raises StepError: where the run key names other code than this process would run"""
    if document.code and document.code != code_digest([deployment.home / path for path in document.code_paths]):
        raise StepError(
            f"the code in {', '.join(document.code_paths)} is not what the run was started with: it changed meanwhile, "
            f"or Airflow and the image of this runtime hold different versions; deploy both from one commit"
        )


def report(work: Callable[[StepInput, Deployment], Ref | None]) -> Ref | Failure | None:
    """
    Do the work of the document that the last argument of the process names, and write its outcome where there is one.

    :return: the outcome
    """
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    deployment = Deployment.from_environment()
    sys.path.insert(0, str(deployment.home))  # include/ is imported from there
    outcome: Ref | Failure | None
    try:
        outcome = work(StepInput.load(Path(sys.argv[-1]).read_text()), deployment)
    except Exception as error:
        # The launcher says the message; where the cause may be ours or the user's code, the way there helps too.
        if not isinstance(error, StepError):
            traceback.print_exc(file=sys.stdout)
        outcome = Failure.of(error)
    if outcome is not None:
        write_result(deployment.result_path, outcome)
    return outcome
