"""The bytes of the library's files, in sequences of 256."""

from __future__ import annotations

from mlops.features.token_set import Bytes, TokenSet

FEATURES = TokenSet(text="text", tokenizer=Bytes(), context=256)
