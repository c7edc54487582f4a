"""Mail."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from mlops.contract.section import Section, Text
from mlops_provider.incidents import Incident


def _address(value: str) -> str:
    if re.fullmatch(r"[^@\s,;<>\x00-\x1f]+@[^@\s,;<>\x00-\x1f]+", value) is None:
        raise ValueError("a mail address such as oncall@example.com")
    return value


Address = Annotated[str, AfterValidator(_address)]


class MailSettings(Section):
    """Settings of :class:`SmtpMail`."""

    to: list[Address] = Field(min_length=1)
    """Addresses."""
    cc: list[Address] = Field(default=[])
    connection: Text = "smtp_default"
    """Airflow connection of type ``smtp``: host, port, login, password, TLS."""
    from_email: Address | None = None
    """Whose mail it is; None: the connection's ``from_email``."""


class SmtpMail:
    """Sends a mail by the SMTP server of an Airflow connection."""

    section: ClassVar[type[Section]] = MailSettings

    @staticmethod
    def send(settings: MailSettings, incident: Incident) -> None:
        """For the parameters see :class:`mlops_provider.notifiers.base.Notifier`."""
        # It takes a third of a second to import, and the DAG processor needs the settings only.
        from airflow.providers.smtp.notifications.smtp import SmtpNotifier

        SmtpNotifier(
            to=settings.to,
            cc=settings.cc or None,
            from_email=settings.from_email,
            smtp_conn_id=settings.connection,
            subject=incident.subject,
            html_content=incident.html,
        ).notify({})
