"""The verdict of a run that has ended, and the note that it becomes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from mlops.contract.rest import MOST_NOTE_CHARACTERS, NOTE_CUT, GoodNight, Verdict, cut_note
from mlops_provider.operator_keys import EXPERIMENTS, PROMOTES, ROLLS_BACK
from mlops_provider.verdicts import reading
from mlops_provider.verdicts.actions import action, is_half_moved, production
from mlops_provider.verdicts.changes import changes
from mlops_provider.verdicts.happened import CANCELLED, happened, is_of_tasks, may_be_cancelled, standing

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from mlops_provider.verdicts.reading import Night

_FEWEST_CHARACTERS: Final = 300
"""Of what happened, in a note."""
_BLANK_LINES: Final = re.compile(r"\n\s*\n")


def verdict_of(
    session: Session, night: Night, state: str, cause: str = "", noted: str = "", cancelled: str = ""
) -> Verdict:
    """
    Read the verdict of a run that has ended.

    :param state: that it has ended in, ``success`` or ``failed``
    :param cause: Airflow's word for why, which it says at that moment only
    :param noted: our note of that moment
    :param cancelled: who has cancelled it, in a sentence; it may have been cleared since
    """
    tasks = reading.tasks_of(session, night.dag_id, night.run_id)
    if cancelled and may_be_cancelled(tasks):
        noted = cancelled
    said = _longer(happened_in(noted), _BLANK_LINES.sub("\n", happened(state, tasks, cause)))
    promotions = [task.state for task in tasks if task.operator == PROMOTES]
    stands = standing(state, promotions)
    if stands == "stopped" and not said:
        said = "Nothing was promoted."
    found: dict[str, Any] = {"run": night.name, "standing": stands, "happened": said}
    if (promotions and stands != "promoted") or (state == "failed" and any(map(is_half_moved, tasks))):
        found["production"] = production(state, tasks, reading.last_promoted(session, night))
    # An experiment, or a rollback, is no night after others: each was asked for something else.
    if state == "failed" and not any(task.operator in (EXPERIMENTS, ROLLS_BACK) for task in tasks):
        good = reading.last_good(session, night)
        failed = [*reading.failed_since(session, night, good), night.due_at]
        found |= {"failed_nights": len(failed), "failed_since": failed[0]}
        if not said.startswith(CANCELLED):
            found["action"] = action(tasks, is_of_tasks(said))
        if good is not None:
            found["last_good"] = GoodNight(run=good.name, due_at=good.due_at)
            found["changes"] = changes(reading.facts(session, good), reading.facts(session, night))
    return Verdict(**found)


def note_of(verdict: Verdict) -> str:
    """Return the note of a run: what happened, then a blank line and the rest; empty where nothing has."""
    rest = "\n".join(verdict.sentences)
    if not verdict.happened:
        return rest
    room = max(MOST_NOTE_CHARACTERS - len(rest) - 2, _FEWEST_CHARACTERS)
    whole = f"{cut_note(verdict.happened, room)}\n\n{rest}" if rest else verdict.happened
    return cut_note(whole, MOST_NOTE_CHARACTERS)


def happened_in(note: str) -> str:
    """Return of our note what happened, which may have been cut off."""
    return note.split("\n\n", 1)[0]


def _longer(noted: str, read: str) -> str:
    """Return what happened, as noted when Airflow said why, or as read if that is the same and was cut off then."""
    return read if read.startswith(noted.removesuffix(NOTE_CUT)) else noted
