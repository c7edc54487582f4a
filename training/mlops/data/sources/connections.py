"""Airflow's connections, as the operator hands them to the step's process in its environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from mlops.contract.step import BadConfigError, connection_variable


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """One connection. Its secrets are in no message and no ``repr``."""

    id: str
    conn_type: str
    host: str | None
    port: int | None
    login: str | None = field(repr=False)
    password: str | None = field(repr=False)
    schema: str | None
    """Name of the database, if the service has databases."""
    extra: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_environment(cls, name: str, user: str, *, conn_type: str | None = None) -> Connection:
        """
        Read a connection from the environment variables of this process.

        :param name: the connection's id in Airflow
        :param user: the setting that names the connection, for messages: ``source 'orders'``, ``tune.connection``
        :param conn_type: the type it must have
        :raises BadConfigError: if the connection was not passed to this process, or has another type
        """
        variable = connection_variable(name)
        if (text := os.environ.get(variable)) is None:
            raise BadConfigError(
                f"{user}: the environment has no {variable}, which the task's operator sets from Airflow's connection "
                f"{name!r}; outside Airflow, set it to the connection as JSON"
            )
        try:
            found = cls(id=name, **json.loads(text))
        except (TypeError, ValueError):  # without the text, which holds secrets
            raise BadConfigError(f"{user}: {variable} is no connection as JSON") from None
        if conn_type is not None and found.conn_type != conn_type:
            raise BadConfigError(f"{user}: connection {name!r} is of type {found.conn_type!r}, not {conn_type!r}")
        return found

    def uri(self, scheme: str) -> str:
        """Return ``scheme://login:password@host:port/schema?extra``, every part quoted."""
        login = quote(self.login or "", safe="") + (f":{quote(self.password, safe='')}" if self.password else "")
        # A socket's folder is quoted, for its first slash would end the host; an IPv6 address stands in brackets.
        host = quote(self.host or "localhost", safe="[]:,")
        host = f"[{host}]" if host.count(":") > 1 and not {"[", ","} & set(host) else host
        host += f":{self.port}" if self.port else ""
        settings = urlencode(
            {
                name: int(value) if isinstance(value, bool) else value
                for name, value in self.extra.items()
                if isinstance(value, (str, int))
            }
        )
        return (
            f"{scheme}://{login}{'@' if login else ''}{host}/{quote(self.schema or '', safe='')}"
            f"{'?' if settings else ''}{settings}"
        )

    def redacted(self, message: object) -> str:
        """Return a library's message without the password, quoted or not."""
        text = str(message).strip()
        for secret in {self.password or "", quote(self.password or "", safe="")} - {""}:
            text = text.replace(secret, "***")
        return text
