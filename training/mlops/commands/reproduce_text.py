"""The messages of ``mlops reproduce`` while it works."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


class Transcript:
    """A transcript with a line for each thing that was checked, and its result."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Progress is for people at a terminal: what is piped stays clean.
        self._status = Console(stderr=True)

    def tell(self, subject: str, sentence: str | None, style: str = "") -> None:
        """
        Print a line about a subject.

        :param sentence: text of the line; None prints nothing
        """
        if sentence is not None:
            self._console.print(Text(f"{subject:<12}", "bold") + Text(sentence, style), soft_wrap=True)

    def compared(self, subject: str, differences: Iterable[str], identical: str) -> None:
        """Print each difference, or a sentence if there is none."""
        found = list(differences)
        for sentence in found:
            self.tell(subject, sentence, "red")
        if not found:
            self.tell(subject, identical, "green")

    @contextmanager
    def working(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show the last line that was passed in, while the work goes on."""
        with self._status.status(Text(what)) as status:
            yield lambda line: status.update(Text(f"{what}: {line}"[: self._status.width - 4]))
