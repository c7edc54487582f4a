"""The bytes of the library's files, in sequences of 256."""

from __future__ import annotations

from mlops import Bytes, TokenSet

FEATURES = TokenSet(text="text", tokenizer=Bytes(), context=256)
