"""A request to a web hook."""

from __future__ import annotations

from typing import ClassVar

from mlops.contract.section import Section, Text
from mlops_provider.incidents import Incident

_SECONDS = 4.0
"""After which a hook that does not answer is tried again."""


class WebhookSettings(Section):
    """Settings of :class:`Webhook`."""

    connection: Text = "http_default"
    """Airflow connection of type ``http``: host, and headers in its extra, such as ``Authorization``."""
    endpoint: str | None = None
    """Path below the connection's host; None: the host itself."""


class Webhook:
    """Posts the incident as JSON: ``event``, ``subject``, ``text``, and the fields of :class:`Incident`."""

    section: ClassVar[type[Section]] = WebhookSettings

    @staticmethod
    def send(settings: WebhookSettings, incident: Incident) -> None:
        """For the parameters see :class:`mlops_provider.notifiers.base.Notifier`."""
        # It takes a second to import, and the DAG processor needs the settings only.
        from airflow.providers.http.notifications.http import HttpNotifier

        HttpNotifier(
            http_conn_id=settings.connection,
            endpoint=settings.endpoint,
            json=incident.document(),
            extra_options={"timeout": _SECONDS},
        ).notify({})
