"""What Airflow is asked for again and again, shown in a terminal as it changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

from mlops.client.following import CUTS, Patience

_LOOK_SECONDS: Final = 3.0
T = TypeVar("T")


def watched(
    look: Callable[[], T], show: Callable[[T], RenderableType | None], is_over: Callable[[T], bool], console: Console
) -> T:
    """
    Look every few seconds, also where Airflow is away for a while, and show what there is.

    :param look: asks Airflow
    :param show: None: nothing is shown
    :param is_over: whether that was the last look
    :return: what the last look has found
    """
    patience = Patience()
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            try:
                found = look()
                patience.heard()
            except CUTS as error:
                patience.check(error)
            else:
                if (shown := show(found)) is not None:
                    live.update(shown, refresh=True)
                if is_over(found):
                    return found
            time.sleep(_LOOK_SECONDS)
