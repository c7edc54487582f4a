"""What an operator signs: an entry that is what it has asked for, whoever wrote it."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mlops_provider.operators.asked_transition import AskedTransition, NotAskedError

NOW = datetime.now(UTC)
BEFORE_AT, AT, CANARY_SINCE = ((NOW - timedelta(minutes=ago)).isoformat() for ago in (10, 5, 60))
PREVIOUS = "a" * 64


def live(stage: str, since: str = BEFORE_AT, **values: Any) -> dict[str, Any]:
    return {"stage": stage, "since": since, "report": None, "approver": None, "decisions": [], **values}


def entry(stages: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {"number": 8, "at": AT, "model": "toy", "who": "toy/night/task", "why": "good", "report": None,
            "approver": None, "previous": PREVIOUS, "former_champion": "3", "writer": "w", "stages": stages,
            **values}  # fmt: skip


CHAMPION, WAITING = live("production"), live("staging", report="r.html", approver="vera", decisions=["d"])
BEFORE = entry({"live": {"3": CHAMPION, "7": WAITING}, "former": ["1", "2"]}, number=7, at=BEFORE_AT)
CANARY_BEFORE = entry(
    {"live": {"3": CHAMPION, "7": {**WAITING, "stage": "canary", "since": CANARY_SINCE}}, "former": ["1", "2"]},
    number=7, at=BEFORE_AT,
)  # fmt: skip


def asked(action: str, **values: Any) -> AskedTransition:
    told: dict[str, Any] = {"model": "toy", "version": "7", "who": "toy/night/task", "why": "good", "champion": "3"}
    return AskedTransition(**{**told, "action": action, **values})


def moved(action: str, after: dict[str, Any], former: tuple[str, ...] = ("1", "2"), **values: Any) -> dict[str, Any]:
    told = {"version": "7", "from_stage": "staging", "action": action, **values}
    return entry({"live": after, "former": list(former)}, **told)


PROMOTED = moved(
    "promote", {"7": {**WAITING, "stage": "production", "since": AT}}, ("1", "2", "3"),
    to_stage="production", report="r.html", approver="vera",
)  # fmt: skip
CASES: dict[str, tuple[AskedTransition, dict[str, Any], dict[str, Any]]] = {
    "register": (
        asked("register", version="9", report="9.html"),
        BEFORE,
        moved("register", {"3": CHAMPION, "7": WAITING, "9": live("staging", AT, report="9.html")},
              version="9", from_stage=None, to_stage="staging", report="9.html"),
    ),
    "approve": (
        asked("approve", approver="otto", decisions=("e",)),
        BEFORE,
        moved("approve", {"3": CHAMPION, "7": {**WAITING, "approver": "otto", "decisions": ["e"]}},
              to_stage="staging", report="r.html", approver="otto"),
    ),
    "canary": (
        asked("canary"),
        BEFORE,
        moved("canary", {"3": CHAMPION, "7": {**WAITING, "stage": "canary", "since": AT}}, to_stage="canary",
              report="r.html", approver="vera"),
    ),
    "archive": (
        asked("archive"),
        BEFORE,
        moved("archive", {"3": CHAMPION}, to_stage="archived", report="r.html", approver="vera"),
    ),
    "promote": (asked("promote", needs_approval=True), BEFORE, PROMOTED),
    "promote a canary": (
        asked("promote", canary_minutes=30),
        CANARY_BEFORE,
        {**PROMOTED, "from_stage": "canary"},
    ),
    "archive a canary whose champion has changed": (
        asked("archive", why=None, champion="2", because_champion_changed=True),
        CANARY_BEFORE,
        moved("archive", {"3": CHAMPION}, from_stage="canary", to_stage="archived", report="r.html", approver="vera",
              why="the champion changed"),
    ),
    "rollback": (
        asked("rollback", version="1", report="1.html"),
        BEFORE,
        moved("rollback", {"1": live("production", AT, report="1.html"), "7": WAITING}, (),
              version="1", from_stage="archived", to_stage="production", report="1.html"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_was_asked_for_is_signed(name: str) -> None:
    """Broken: an honest night fails when its entry is to be signed."""
    transition, before, found = CASES[name]
    transition.check(json.loads(json.dumps(found)), json.loads(json.dumps(before)), PREVIOUS)


def test_the_first_entry_has_none_before_it() -> None:
    transition, _, found = CASES["register"]
    first = {**found, "number": 1, "previous": None, "former_champion": None}
    first["stages"] = {"live": {"9": found["stages"]["live"]["9"]}, "former": []}
    transition.check(first, None, None)


FIELDS = sorted(set(PROMOTED) - {"at", "writer"})


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("field", FIELDS)
def test_no_other_entry_is_signed(name: str, field: str) -> None:
    """Broken: who may write the store puts an entry there, and the operator's key answers for it."""
    transition, before, found = CASES[name]
    other = copy.deepcopy(found)
    if field == "stages":
        other["stages"]["former"] = ["5"]
    elif field == "why" and transition.why is None:
        return
    else:
        other[field] = 99 if field == "number" else "99"
    with pytest.raises(NotAskedError, match=field):
        transition.check(other, before, PREVIOUS)


@pytest.mark.parametrize(
    ("transition", "before", "changes", "why"),
    [
        pytest.param(asked("promote", needs_approval=True),
                     entry({"live": {"3": CHAMPION, "7": live("staging")}, "former": []}, number=7, at=BEFORE_AT), {},
                     "nobody had approved", id="no approval"),
        pytest.param(asked("promote", canary_minutes=30), BEFORE, {}, "not been the canary for 30", id="no canary"),
        pytest.param(asked("promote", canary_minutes=90), CANARY_BEFORE, {}, "not been the canary for 90", id="short"),
        pytest.param(asked("promote", champion="2"), BEFORE, {}, "the champion before it was 3, not 2", id="contest"),
        pytest.param(asked("promote"), BEFORE, {"at": (NOW + timedelta(days=9)).isoformat()}, "yet to come",
                     id="future"),
        pytest.param(asked("promote"), BEFORE, {"at": (NOW - timedelta(hours=1)).isoformat()}, "before that of",
                     id="past"),
        pytest.param(asked("promote"), BEFORE, {"at": "x"}, "it is damaged", id="no time"),
        pytest.param(asked("promote"), BEFORE, {"stages": []}, "it is damaged", id="no stages"),
        pytest.param(asked("promote", version="8"), BEFORE, {}, "version 8 was in no stage", id="archived"),
        pytest.param(asked("archive", because_champion_changed=True), CANARY_BEFORE, {}, "no canary whose champion",
                     id="canary of the same champion"),
        pytest.param(asked("rollback", version="5"), BEFORE, {}, "to a former champion", id="rejected"),
        pytest.param(asked("rollback", version="1", champion="2"), BEFORE, {}, "take version 2 back", id="another"),
    ],
)  # fmt: skip
def test_what_the_step_would_have_refused_is_not_signed(
    transition: AskedTransition, before: dict[str, Any], changes: dict[str, Any], why: str
) -> None:
    """Broken: an entry that no step would have written passes, because the step never ran."""
    with pytest.raises(NotAskedError, match=why):
        transition.check({**PROMOTED, **changes}, before, PREVIOUS)
