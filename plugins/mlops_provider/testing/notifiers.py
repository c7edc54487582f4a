"""
What every notifier must do, whoever wrote it.

Subclass :class:`NotifierConformance` in a test module, with the class under test, settings of it, and a fixture of what
has arrived::

    class TestMine(NotifierConformance):
        notifier = Mine
        settings = {"topic": "oncall"}
        away = {"topic": "oncall", "connection": "away"}

        @pytest.fixture
        def received(self) -> list[str]: ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from mlops.contract.section import SpecError, check_section
from mlops_provider.incidents import EXAMPLE
from mlops_provider.notifiers.base import Notifier
from mlops_provider.notify_spec import EVENTS, Event


class NotifierConformance:
    notifier: ClassVar[type[Notifier]]
    settings: ClassVar[Mapping[str, Any]]
    away: ClassVar[Mapping[str, Any]]
    """Settings that lead to a server that does not answer."""

    @pytest.fixture
    def received(self) -> Sequence[str]:
        """The messages that have arrived, as text; it grows."""
        raise NotImplementedError

    def send(self, settings: Mapping[str, Any], event: Event = "failed", **changes: Any) -> None:
        section = check_section(self.notifier.section, settings, "here")
        self.notifier.send(section, replace(EXAMPLE, event=event, **changes))

    @pytest.mark.parametrize("event", EVENTS)
    def test_people_read_what_happened_where_and_how_to_see_more(self, received: Sequence[str], event: Event) -> None:
        self.send(self.settings, event, links={"Run": "https://airflow.example.com/dags/flights/runs/1"})
        (message,) = received
        for wanted in (EXAMPLE.pipeline, EXAMPLE.run_id, "outside its domain", "airflow.example.com/dags/flights/runs"):
            assert wanted in message

    def test_a_message_of_any_characters_arrives(self, received: Sequence[str]) -> None:
        said = "Größe < 0 in “µ”\nzwei Zeilen: 数据"
        self.send(self.settings, message=said)
        (message,) = received
        assert "Größe" in message
        assert "数据" in message

    def test_a_message_that_does_not_arrive_is_an_error(self, received: Sequence[str]) -> None:
        """It is sent again then, and the task's log says so."""
        with pytest.raises(Exception, match=r"."):
            self.send(self.away)
        assert not received

    def test_a_setting_that_it_does_not_have_is_refused(self) -> None:
        with pytest.raises(SpecError, match="unknown key"):
            check_section(self.notifier.section, {**self.settings, "no_such_setting": 1}, "here")
