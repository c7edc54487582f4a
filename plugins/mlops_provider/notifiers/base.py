"""The protocol of what tells people of incidents."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from mlops.contract.section import Section
from mlops_provider.incidents import Incident


class Notifier(Protocol):
    """
    Tells people of an incident, one way.

    For each incident :meth:`send` is called once, in a thread of its own, by the process of the task to which it
    happened, or by Airflow's DAG processor where that process is lost. It is called again where it raises, and left
    alone where it takes too long.
    """

    section: ClassVar[type[Section]]
    """Its settings, as a pipeline gives them. One called ``connection`` is the id of an Airflow connection, and
    a team's pipeline can name only those that it may use."""

    @staticmethod
    def send(settings: Any, incident: Incident) -> None:
        """
        Send a message.

        :param settings: an instance of the section
        """
