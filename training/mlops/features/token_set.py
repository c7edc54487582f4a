"""Token sets: what a feature set is to a table, for text; the one definition, for training and for serving."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import polars as pl

from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.feature_table import IntArray
from mlops.features.protocol import State
from mlops.features.source_line import SourceLine, line_of_caller, no_column

TOKENS_FORMAT: Final = 1
"""Version of the state's format, and of the way in which documents are put end to end."""


class Tokenizer(Protocol):
    """
    Text to numbers and back. The features step calls ``fit`` once; then any process calls the other methods with the
    state that it returned. A tokenizer is identified by its name and its state: equal ones turn the same text into the
    same tokens.
    """

    def fit(self, texts: Iterable[str]) -> State:
        """
        Fit the tokenizer, and return its state as JSON.

        :param texts: texts of the training split
        """

    def vocab_size(self, state: State) -> int:
        """Return the size of the vocabulary; every token is smaller."""

    def encode(self, text: str, state: State) -> IntArray:
        """Return the ``[T]`` tokens of a text."""

    def decode(self, tokens: IntArray, state: State) -> str: ...


@dataclass(frozen=True, slots=True)
class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8: no text is unknown, nothing is fitted."""

    def fit(self, texts: Iterable[str]) -> State:
        return {}

    def vocab_size(self, state: State) -> int:
        return 256

    def encode(self, text: str, state: State) -> IntArray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, tokens: IntArray, state: State) -> str:
        # What a model makes up need not be whole characters.
        return tokens.astype(np.uint8).tobytes().decode(errors="replace")


@dataclass(frozen=True, kw_only=True)
class TokenSet:
    """
    The definition that the data scientist of a language model writes as ``FEATURES``. A row of the table is a document.
    """

    text: str
    """Column that holds the text."""
    context: int
    """Number of tokens that the model sees at once."""
    tokenizer: Tokenizer = Bytes()
    line: SourceLine = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "line", line_of_caller())
        if self.context < 1:
            raise BadConfigError(f"{self.line}: TokenSet.context must be at least 1 token, got {self.context}")

    def texts(self, frame: pl.DataFrame) -> list[str]:
        """
        Return the documents of some rows.

        :raises BadConfigError: where the column is not there, or holds no text
        :raises BadDataError: where a document is empty or null
        """
        if self.text not in frame.columns:
            raise BadConfigError(f"{self.line}: TokenSet.text: {no_column(self.text, frame.columns)}")
        column = frame[self.text]
        if column.dtype != pl.String:
            raise BadConfigError(f"{self.line}: TokenSet.text: column {self.text!r} is {column.dtype}, not text")
        texts: list[str | None] = column.to_list()
        found = [text for text in texts if text]
        if num_empty := len(texts) - len(found):
            raise BadDataError(
                f"{self.line}: the {self.text!r} of {num_empty} of {len(texts)} documents is empty; leave them out in "
                "ingest.transform"
            )
        return found


class FittedTokens:
    """
    A token set with its state: the way from text to a model's inputs and back.

    :raises BadConfigError: if the state is not from this token set and release
    """

    def __init__(self, token_set: TokenSet, state: State) -> None:
        name = type(token_set.tokenizer).__name__
        if state.get("format") != TOKENS_FORMAT or state.get("tokenizer") != name:
            raise BadConfigError(
                f"{token_set.line}: the state is of {state.get('tokenizer', 'no tokenizer')}, format "
                f"{state.get('format')}, and here are {name}, format {TOKENS_FORMAT}; run features and training again"
            )
        self.token_set, self.state = token_set, state
        self.context = token_set.context
        size = token_set.tokenizer.vocab_size(state["fitted"])
        self.end_of_document = size
        """Token behind each document: the first number that the tokenizer does not use."""
        self.vocab_size = size + 1

    @classmethod
    def fit(cls, token_set: TokenSet, texts: Iterable[str]) -> FittedTokens:
        """
        Fit a token set.

        :param texts: texts of the training split
        """
        tokenizer = token_set.tokenizer
        return cls(
            token_set,
            {
                "format": TOKENS_FORMAT,
                "tokenizer": type(tokenizer).__name__,
                "columns": {token_set.text: str(pl.String())},
                "fitted": tokenizer.fit(texts),
            },
        )

    def encode(self, text: str) -> IntArray:
        """Return the ``[T]`` tokens of a text, without the end of the document, so that a prompt can be continued."""
        return self.token_set.tokenizer.encode(text, self.state["fitted"])

    def decode(self, tokens: IntArray) -> str:
        """Return the text up to the end of the document, if the tokens hold one."""
        ends = np.flatnonzero(tokens == self.end_of_document)
        return self.token_set.tokenizer.decode(tokens[: ends[0]] if len(ends) else tokens, self.state["fitted"])

    def encode_rows(self, frame: pl.DataFrame) -> list[IntArray]:
        """Return the tokens of the documents of some rows, each as :meth:`encode` gives it."""
        return [self.encode(text) for text in self.token_set.texts(frame)]

    @property
    def columns(self) -> pl.Schema:
        """Raw columns of a request."""
        return pl.Schema({self.token_set.text: pl.String()})

    @property
    def description(self) -> dict[str, Any]:
        """Facts about its inputs that a model must know: ``context`` and ``vocab_size``."""
        return {"context": self.context, "vocab_size": self.vocab_size}
