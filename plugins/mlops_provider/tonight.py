"""``mlops tonight``: how all pipelines stand, those that need a person first."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console, Group
from rich.text import Text

from mlops.client import PipelineTonight
from mlops.contract.rest import Standing
from mlops_provider.handed_over import aside, client_of, find_stack, print_json
from mlops_provider.looking import watched
from mlops_provider.progress import how_far

_STYLES: Final[Mapping[Standing, str]] = {
    "broken": "bold red",
    "failed": "red",
    "asked": "bold yellow",
    "held": "yellow",
    "stopped": "yellow",
    "running": "cyan",
    "promoted": "green",
}
_SOON_DAYS: Final = 6


def tonight(options: argparse.Namespace, console: Console) -> int:
    """
    Print how the pipelines stand; with ``--watch`` anew every few seconds, until Ctrl-C.

    :return: exit code
    """
    out = aside() if options.json else None
    find_stack(options)
    with client_of(options) as client:
        found = watched(client.tonight, _shown, lambda _: False, console) if options.watch else client.tonight()
    if out is not None:
        print_json([each.model_dump(mode="json") for each in found], out)
    else:
        for line in _lines(found):
            # Not broken at the terminal's width: addresses are there to be clicked on, and copied.
            console.print(line, soft_wrap=True)
    return 0


def _shown(found: Sequence[PipelineTonight]) -> Group:
    return Group(*_lines(found))


def _lines(found: Sequence[PipelineTonight]) -> list[Text]:
    none = Text("there is no pipeline that you may read: see Airflow's import errors, or mlops lint")
    return [line for each in found for line in _pipeline(each)] or [none]


def _pipeline(each: PipelineTonight) -> Iterator[Text]:
    since = "" if each.since is None else f" since {_at(each.since)}"
    following = ", paused" if each.is_paused else "" if each.next_run is None else f", next run {_at(each.next_run)}"
    yield Text.assemble(
        (each.name, "bold"), "  ", (each.standing, _STYLES.get(each.standing, "")), (f"{since}{following}", "dim")
    )
    for line in _printable(each.said).splitlines():
        yield Text(f"    {line}")
    for training in each.trainings:
        yield Text(f"    {how_far(training)}")
    for question in each.questions:
        may = f" ({', '.join(question.approvers)} may)" if question.approvers else ""
        address = (question.address, f"link {question.address}")
        yield Text.assemble(f"    Answer{_printable(may)}: ", address)


def _printable(text: str) -> str:
    """Drop what would steer the terminal of whoever looks: a person or a log has written the text."""
    return "".join(letter for letter in text if letter.isprintable() or letter == "\n")


def _at(moment: datetime) -> str:
    """Return a moment, UTC; one that is near by the day of the week."""
    is_near = abs((datetime.now(UTC) - moment).days) <= _SOON_DAYS
    return f"{moment.astimezone(UTC):%a %H:%M} UTC" if is_near else f"{moment.astimezone(UTC):%Y-%m-%d}"
