from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ASKS_AND_LEAVES = """
import asyncio
import atexit
import sys

import obstore
from obstore.store import LocalStore

from mlops_provider.processes import leave

store = LocalStore(sys.argv[1])


async def ask():
    await asyncio.gather(*(obstore.head_async(store, "object") for _ in range(8)))


asyncio.run(ask())
atexit.register(print, "at its end")
print("done")
leave(3)
"""


def test_a_command_that_has_just_asked_the_store_ends_as_it_says(tmp_path: Path) -> None:
    """Broken: most such processes would abort with SIGABRT, and a script would take what is done for failed."""
    (tmp_path / "object").write_text("")
    for _ in range(8):
        done = subprocess.run(
            [sys.executable, "-c", ASKS_AND_LEAVES, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (3, "done\nat its end\n"), done.stderr
