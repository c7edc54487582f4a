"""Who owns the metrics on local disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mlops.tracking.spool_file import Line, SpoolFile


def test_nobody_takes_over_a_file_that_is_just_being_made(tmp_path: Path) -> None:
    """Broken: of processes that begin at once on one machine, one would fail, or write metrics into a removed file."""
    line = Line(1, 1, b"{}")

    def write(_: int) -> Path:
        file = SpoolFile.new(tmp_path)
        file.append([line])
        return file.path

    def take_over(_: int) -> None:
        for file in SpoolFile.left_in(tmp_path):
            file.close()

    def run(turn: int) -> Path | None:
        return (write if turn % 2 else take_over)(turn)

    with ThreadPoolExecutor(4) as pool:
        written = [path for path in pool.map(run, range(400)) if path]
    assert all(path.stat().st_size > len(line.dump()) for path in written)
