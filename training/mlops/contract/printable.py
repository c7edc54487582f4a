"""Text of others, as it is safe to print. Standard library only."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""
    Return text with each character that is not printed as its escape, such as ``\x1b``.

    A terminal acts on control characters: text with some could hide or rewrite what was printed before.
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def one_line(text: str) -> str:
    """Return the words of a text as one printable line, with a space for all that lies between them."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
