"""Turn documents into token shards, and open a stored token set again."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from mlops.code import load_bundled
from mlops.contract.refs import Artifact, FeaturesRef, digest_of
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.engines import Table
from mlops.data.shards.batch import IntArray
from mlops.data.shards.tokens import write_tokens
from mlops.features.batches import Batches, batches_of
from mlops.features.fitted import read_manifest
from mlops.features.materialise import Materialised
from mlops.features.token_set import TOKENS_FORMAT, FittedTokens, TokenSet
from mlops.store import Store

BATCH_DOCUMENTS: Final = 1024
"""Documents read at once: fewer than rows of a table, because documents are long."""

logger = logging.getLogger(__name__)


def tokenise(
    store: Store, place: str, token_set: TokenSet, tables: Mapping[str, Table], code: Artifact
) -> Materialised:
    """
    Fit on the training split, and store every split: its documents end to end, in canonical order.

    :param place: folder of the step
    :param tables: rows by split
    :param code: code of the token set
    :raises BadDataError: where a split's documents do not fill one sequence
    """
    with ExitStack() as stack:
        splits = {
            name: stack.enter_context(batches_of(table, (), rows=BATCH_DOCUMENTS)) for name, table in tables.items()
        }
        texts = (text for batch in splits["train"].map(token_set.texts) for text in batch)
        fitted = FittedTokens.fit(token_set, texts)
        parts = {name: _write(store, place, name, fitted, batches) for name, batches in splits.items()}
    return Materialised(
        manifest={"grouped": False, **fitted.description, "splits": parts},
        state=fitted.state,
        version=tokens_version(code.sha256, fitted),
        num_features=fitted.context,
    )


def _write(store: Store, place: str, name: str, fitted: FittedTokens, batches: Batches) -> dict[str, Any]:
    num_tokens = 0

    def documents() -> Iterator[IntArray]:
        nonlocal num_tokens
        for batch in batches.map(fitted.encode_rows):
            for document in batch:
                num_tokens += len(document)
                yield document

    part = write_tokens(
        store, place, name, documents(), context=fitted.context, eos=fitted.end_of_document,
        vocab_size=fitted.vocab_size,
    )  # fmt: skip
    if not part["num_samples"]:
        raise BadDataError(
            f"{fitted.token_set.line}: the {batches.num_rows} documents of split {name!r} have {num_tokens} tokens, "
            f"which is no sequence of {fitted.context}; lower TokenSet.context, or give ingest.split more documents"
        )
    logger.info(
        "%s: %d documents, %d tokens, %d sequences of %d, %d shards", name, batches.num_rows, num_tokens,
        part["num_samples"], fitted.context, len(part["shards"]),
    )  # fmt: skip
    return part


def tokens_version(code_sha256: str, fitted: FittedTokens) -> str:
    """Return SHA-256 of all that decides the meaning of a token: code, tokenizer, format."""
    return digest_of([code_sha256, fitted.state, fitted.description])


def as_token_set(value: object, import_path: str) -> TokenSet:
    """
    Check that an imported object is a token set.

    :raises BadConfigError: if it is something else
    """
    if not isinstance(value, TokenSet):
        raise BadConfigError(
            f"{import_path!r} is a {type(value).__name__}, not a TokenSet; a language model's features are "
            "FEATURES = TokenSet(...) from mlops.features.token_set"
        )
    return value


def load_tokens(store: Store, ref: FeaturesRef, scratch: Path) -> FittedTokens:
    """
    Open the token set of a ref with the code that made it, whatever the checkout holds now.

    :param scratch: folder for the unpacked code; must stay as long as the tokens are in use
    :raises DamagedObjectError: where a stored object is missing or not the one that was written
    :raises BadConfigError: where it was made with another release, or the state is not its own
    """
    import_path = read_manifest(store, ref)["feature_set"]
    code = ref.artifacts["code"]
    token_set = as_token_set(load_bundled(store.read(code), import_path, scratch), import_path)
    fitted = FittedTokens(token_set, json.loads(store.read(ref.artifacts["state"])))
    check_tokens_version(ref, fitted)
    return fitted


def check_tokens_version(ref: FeaturesRef, fitted: FittedTokens) -> None:
    """:raises BadConfigError: where the code and the state of a ref make another version than it has"""
    if (made := tokens_version(ref.artifacts["code"].sha256, fitted)) != ref.version:
        raise BadConfigError(
            f"the tokens at {ref.place} are version {ref.version[:12]}, but their code and the tokenizer's state make "
            f"{made[:12]} with this release (format {TOKENS_FORMAT}); run the features step and train again"
        )
