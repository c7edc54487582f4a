"""
What every source must do.

A test module of a source makes a subclass of :class:`SourceConformance` and gives the fixtures that it names::

    class TestMySource(SourceConformance):
        @pytest.fixture
        def kind(self):
            return "my_source"

        @pytest.fixture
        def settings(self, home):
            return {"path": "rows.mine", "event_time": "at"}
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.ingest import Ingest
from mlops.contract.sources import AnySource
from mlops.data.engine.engines import collect
from mlops.data.sources import SourceTable, open_source, read_source
from mlops.data.sources.window import Window


class SourceConformance:
    """
    Tests of a kind of source. Fixtures: ``kind``, its name or import path; ``settings``, with which it has at least two
    rows before :meth:`as_of` and none that is left out for another reason; ``home``, the folder where relative paths
    start.
    """

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def as_of(self) -> datetime:
        """Return the end of the data interval."""
        return datetime(2024, 1, 3, tzinfo=UTC)

    @pytest.fixture
    def section(self, kind: str, settings: Mapping[str, Any]) -> AnySource:
        found: AnySource = TypeAdapter(AnySource).validate_python({"kind": kind, **settings})
        return found

    def _read(self, section: AnySource, home: Path, as_of: datetime, scratch: str) -> SourceTable:
        window = Window.before(as_of, 1, "UTC")
        return read_source("s", section, home=home, scratch=home / scratch, window=window, engine="polars")

    def test_rows_are_read(self, section: AnySource, home: Path, as_of: datetime) -> None:
        table = self._read(section, home, as_of, "one")
        rows = collect(table.rows)
        assert rows.height == table.provenance["num_rows"] >= 2
        assert rows.columns == list(table.columns)
        table.finish()

    def test_the_position_is_json_and_says_what_was_read(self, section: AnySource, home: Path, as_of: datetime) -> None:
        """Broken: the manifest could not tell, and nobody could make, what a model was trained on."""
        first, again = (self._read(section, home, as_of, scratch) for scratch in ("one", "two"))
        assert first.provenance["position"]
        assert json.loads(json.dumps(first.provenance)) == first.provenance
        assert first.provenance == again.provenance
        rows = [collect(table.rows) for table in (first, again)]
        assert rows[0].sort(rows[0].columns[0]).equals(rows[1].sort(rows[1].columns[0]))
        for table in (first, again):
            table.finish()

    def test_nothing_is_read_that_was_not_yet_known(self, section: AnySource, home: Path, as_of: datetime) -> None:
        """Broken: a model would learn from what nobody could know when it is asked."""
        if section.event_time is None:
            pytest.skip("a table without history")
        rows = collect(self._read(section, home, as_of, "whole").rows)
        last = rows[section.event_time].max()
        assert isinstance(last, datetime)
        assert last < as_of
        if (rows[section.event_time] < last).any():
            earlier = collect(self._read(section, home, last, "part").rows)
            assert (earlier[section.event_time] < last).all()

    def test_settings_are_checked_when_a_pipeline_is_parsed(self, kind: str, settings: Mapping[str, Any]) -> None:
        """Broken: a typing mistake would be found at night."""
        if ":" in kind:
            pytest.skip("the scheduler does not import it")
        pipeline = {"sources": {"a": {"kind": kind, **settings}}, "event_time": "at", "window": 28}
        config = check_section(Ingest, pipeline, "ingest")
        dumped = config.model_dump(mode="json")
        assert Ingest.model_validate(dumped).model_dump(mode="json") == dumped
        pipeline["sources"] = {"a": {"kind": kind, **settings, "no_such_setting": 1}}
        with pytest.raises(SpecError, match="unknown key 'sources.a.no_such_setting'"):
            check_section(Ingest, pipeline, "ingest")

    def test_pieces_can_be_read_elsewhere(self, section: AnySource, home: Path, as_of: datetime) -> None:
        """Broken: the source could not be read by Spark's executors."""
        source, *_ = open_source("s", section, home=home, window=Window.before(as_of, 1, "UTC"))
        position = source.position()
        pieces = source.pieces(position, home / "pieces")
        assert pieces
        for piece in pieces:
            assert piece.place
            assert pickle.dumps(piece)
        source.finish(position)
