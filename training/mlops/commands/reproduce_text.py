"""What ``mlops reproduce`` tells while it works."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


class Transcript:
    """A line for each thing that was looked at: which, and what came of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Progress is for people at a terminal: what is piped stays clean.
        self._status = Console(stderr=True)

    def tell(self, subject: str, sentence: str | None, style: str = "") -> None:
        """
        :param sentence: None: there is nothing to tell
        """
        if sentence is not None:
            self._console.print(Text(f"{subject:<12}", "bold") + Text(sentence, style), soft_wrap=True)

    def compared(self, subject: str, differences: Iterable[str], identical: str) -> None:
        """Each difference, or a sentence for there being none."""
        found = list(differences)
        for sentence in found:
            self.tell(subject, sentence, "red")
        if not found:
            self.tell(subject, identical, "green")

    @contextmanager
    def working(self, what: str) -> Iterator[Callable[[str], None]]:
        """Shows the last line that is handed in, while it goes on."""
        with self._status.status(Text(what)) as status:
            yield lambda line: status.update(Text(f"{what}: {line}"[: self._status.width - 4]))
