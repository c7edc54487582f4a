"""Tells phones of incidents by an ntfy server (https://docs.ntfy.sh/publish)."""

from __future__ import annotations

from typing import ClassVar

import httpx
from airflow.sdk import BaseHook

from mlops.contract.section import Name, Section
from mlops_provider.incidents import Incident


class NtfySettings(Section):
    """Settings of :class:`Ntfy`."""

    topic: Name
    """That phones subscribe to."""
    connection: str = "ntfy_default"
    """Airflow connection: the server's address as its host, and an access token as its password where it has one."""


class Ntfy:
    """Publishes the message; it is urgent where somebody must act, and opens the run."""

    section: ClassVar[type[Section]] = NtfySettings

    @staticmethod
    def send(settings: NtfySettings, incident: Incident) -> None:
        server = BaseHook.get_connection(settings.connection)
        is_urgent = incident.event in ("failed", "approval")
        message = {
            "topic": settings.topic,
            "title": incident.subject,
            "message": incident.text,
            "priority": 4 if is_urgent else 3,
            "click": incident.links.get("Answer") or incident.links.get("Run"),
        }
        token = {"Authorization": f"Bearer {server.password}"} if server.password else {}
        httpx.post(str(server.host), json=message, headers=token, timeout=10).raise_for_status()
