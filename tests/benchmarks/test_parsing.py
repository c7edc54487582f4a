from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parsing import Pass, parse_seconds, write_pipelines, write_trivial

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("dag_id", [None, "dag_002"], ids=["all", "for_a_task"])
def test_a_pass_reads_what_was_written(tmp_path: Path, dag_id: str | None) -> None:
    """The time of reading nothing, or of another number of DAGs, would be recorded; parse_seconds checks the number."""
    what = Pass(name="parse", count=3, process="scheduler", baseline="trivial", target=1, dag_id=dag_id)
    for file in (
        write_pipelines(REPOSITORY, tmp_path / "pipelines", 3),
        write_trivial(REPOSITORY, tmp_path / "trivial"),
    ):
        assert 0 < parse_seconds(REPOSITORY, tmp_path, file, what) < 60


def test_a_pass_over_a_broken_pipeline_is_no_measurement(tmp_path: Path) -> None:
    """A file that fails early would count as a fast one."""
    file = write_pipelines(REPOSITORY, tmp_path / "pipelines", 1)
    (tmp_path / "pipelines/dag_000.pipeline.yaml").write_text("pipeline: dag_000\n")
    what = Pass(name="parse", count=1, process="fresh", baseline="trivial", target=1)
    with pytest.raises(RuntimeError, match="the key 'ingest' is missing|expected 2"):
        parse_seconds(REPOSITORY, tmp_path, file, what)
