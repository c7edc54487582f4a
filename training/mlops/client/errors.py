"""What a request may end in, other than in an answer."""

from __future__ import annotations


class ClientError(RuntimeError):
    """The message says what is wrong, and what would do."""


class RefusedError(ClientError):
    """
    The server does not do what was asked for.

    :param status: of HTTP, such as 403, 404, 409 or 422
    :param detail: its own words
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, detail

    def __str__(self) -> str:
        return self.detail


class UnreachableError(ClientError):
    """No server answers."""
