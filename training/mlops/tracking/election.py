"""Which run of a piece of work is the one, when processes open it at the same moment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlops.tracking.rest import RefusedError, Rest

RUN_KEY_TAG: Final = "mlops.run_key"
ELECTION: Final = "mlops.election"
"""
Param that says whether a run is the one of its key. A param because MLflow keeps the first value that is written, of
all that ask at once: nothing else in its API lets one process win.
"""
KEPT: Final = "kept"
SURPLUS: Final = "surplus"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    run_id: str
    vote: str | None


def find_or_create(rest: Rest, experiment_id: str, *, run_key: str, name: str) -> str | None:
    """
    Return the one run that has the key; make it if there is none.

    Every process lists the runs of the key, votes against all but the first, and then for the first. A run gets one
    vote that counts, the earliest. Of two runs, at least one process that votes for either has listed both, so two are
    never kept; and a run that a process was told to be the one is never given up for another, whatever the clocks say.

    :return: id of the run; None if others voted meanwhile, and it has to be asked again
    :raises RefusedError: if the server refuses, or a run was deleted before its vote
    """
    candidates = _candidates(rest, experiment_id, run_key)
    if all(each.vote == SURPLUS for each in candidates):
        tags = [{"key": RUN_KEY_TAG, "value": run_key}]
        new = {"experiment_id": experiment_id, "run_name": name, "tags": tags}
        rest.post("runs/create", {**new, "start_time": int(time.time() * 1000)})
        candidates = _candidates(rest, experiment_id, run_key)
    kept = next((each for each in candidates if each.vote == KEPT), None)
    kept = kept or _elect(rest, [each for each in candidates if each.vote is None])
    if kept is None:
        return None
    for surplus in candidates:
        if surplus is not kept:
            _delete(rest, surplus.run_id)
    return kept.run_id


def _delete(rest: Rest, run_id: str) -> None:
    try:
        rest.post("runs/delete", {"run_id": run_id})
    except RefusedError as error:
        if not error.is_gone:  # by another process, a moment ago
            raise


def _elect(rest: Rest, candidates: Sequence[_Candidate]) -> _Candidate | None:
    """
    :param candidates: those that have no vote yet
    """
    votes = [(each, SURPLUS) for each in candidates[1:]] + [(each, KEPT) for each in candidates[:1]]
    return candidates[0] if votes and all(_vote(rest, each.run_id, vote) for each, vote in votes) else None


def _vote(rest: Rest, run_id: str, vote: str) -> bool:
    """
    :return: True if this is the vote that counts
    """
    try:
        rest.post("runs/log-parameter", {"run_id": run_id, "key": ELECTION, "value": vote})
    except RefusedError as error:
        counted = None if error.is_gone else _vote_of(rest.get("runs/get", run_id=run_id)["run"])
        if counted is None:
            raise
        return counted == vote
    return True


def _candidates(rest: Rest, experiment_id: str, run_key: str) -> list[_Candidate]:
    """Return the runs with a key in an order that is the same for all who ask."""
    wanted = {"experiment_ids": [experiment_id], "filter": f"tags.`{RUN_KEY_TAG}` = '{run_key}'"}
    found = rest.post("runs/search", wanted).get("runs", [])
    in_order = sorted(found, key=lambda run: (int(run["info"]["start_time"]), run["info"]["run_id"]))
    return [_Candidate(run_id=run["info"]["run_id"], vote=_vote_of(run)) for run in in_order]


def _vote_of(run: Mapping[str, Any]) -> str | None:
    return next((param["value"] for param in run["data"].get("params", []) if param["key"] == ELECTION), None)
