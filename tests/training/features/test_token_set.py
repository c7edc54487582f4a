from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
from turns import on_turn

from mlops.contract.refs import FeaturesRef, canonical_json
from mlops.contract.step import BadConfigError, BadDataError, Failure
from mlops.data.shards.batch import SampleSource
from mlops.data.shards.shard_reading import open_source, open_split
from mlops.data.snapshots.snapshot import Snapshot
from mlops.features.tokenise import load_tokens

END = 256


@pytest.fixture
def library(project: Any) -> Any:
    corpus.write_library(project.home)
    corpus.write_recipe(project.home)
    return project


@pytest.fixture
def features(library: Any, run_step: Any) -> FeaturesRef:
    ref = corpus.tokens_of(library, run_step, corpus.ingested(library, run_step))
    assert isinstance(ref, FeaturesRef), ref
    return ref


def stream(source: SampleSource) -> list[int]:
    """All tokens of a split, one behind the other."""
    batch = source.gather(np.arange(int(source.shard_sizes.sum())))
    return [*batch.features.flatten().tolist(), int(batch.labels[-1, -1])]


def test_each_split_is_its_own_documents_end_to_end(library: Any, features: FeaturesRef, tmp_path: Path) -> None:
    """Broken: the model would be judged on text that it has learnt by heart."""
    snapshot = Snapshot.open(library.store, features.parent.parent)
    seen: set[str] = set()
    for split in ("train", "validation", "test"):
        rows = snapshot.read_split(split)
        assert not seen & set(rows["path"])
        seen |= set(rows["path"])
        whole = [token for text in rows["text"] for token in [*text.encode(), END]]
        found = stream(open_source(library.store, features, split, tmp_path))
        assert found == whole[: len(found)]
        assert len(whole) - len(found) < 16, "less than a sequence is left out"
        assert features.num_samples[split] == (len(found) - 1) // 16
    assert len(seen) == 40
    assert features.num_features == 16


def test_a_served_text_is_what_was_trained_on(library: Any, features: FeaturesRef, tmp_path: Path) -> None:
    fitted = load_tokens(library.store, features, tmp_path)
    text = "def f():\n    return 'ü'\n"
    assert fitted.encode(text).tolist() == list(text.encode())
    assert fitted.decode(fitted.encode(text)) == text
    assert fitted.decode(np.array([*b"ab", END, *b"the next"])) == "ab"
    assert (fitted.vocab_size, fitted.end_of_document, fitted.context) == (257, END, 16)
    found = stream(open_source(library.store, features, "train", tmp_path))
    document = fitted.decode(np.array(found))
    assert fitted.encode(document).tolist() == found[: found.index(END)]


def test_a_tokenizer_is_fitted_on_the_training_split_alone(library: Any, run_step: Any, tmp_path: Path) -> None:
    """Broken: the vocabulary would tell of the held-out text."""
    dataset = corpus.ingested(library, run_step)
    held_out = Snapshot.open(library.store, dataset).read_split("test")["path"][0]
    path = library.home / "data/library" / held_out
    path.write_text(path.read_text() + "§")
    dataset = corpus.ingested(replace(library, pipeline="second"), run_step)
    features = corpus.tokens_of(library, run_step, dataset, "CHARACTERS")
    fitted = load_tokens(library.store, features, tmp_path)
    assert "§" not in fitted.state["fitted"]["characters"]
    assert fitted.decode(fitted.encode("def §")) == "def ?"
    assert 10 < fitted.vocab_size < 60


def test_the_version_is_the_tokenizer_s(library: Any, features: FeaturesRef, run_step: Any) -> None:
    """Broken: a model would be given the tokens of another vocabulary."""
    dataset = features.parent.parent
    again = corpus.tokens_of(library, run_step, dataset, run_key="again")
    other = corpus.tokens_of(library, run_step, dataset, "CHARACTERS", "other")
    assert again.version == features.version != other.version
    for name in ("state", "code"):
        assert again.artifacts[name].sha256 == features.artifacts[name].sha256


def test_a_state_of_another_tokenizer_is_refused(
    library: Any, features: FeaturesRef, run_step: Any, tmp_path: Path
) -> None:
    characters = corpus.tokens_of(library, run_step, features.parent.parent, "CHARACTERS", "other")
    state = json.loads(library.store.read(characters.artifacts["state"]))

    def with_state(state: Any) -> FeaturesRef:
        artifact = library.store.put_artifact("features/x", "state.json", canonical_json(state))
        return replace(characters, artifacts={**characters.artifacts, "state": artifact})

    for wrong, message in {
        "another format": ({**state, "format": 0}, r"format 0, and here are Characters, format 1; run features"),
        "another tokenizer": ({**state, "tokenizer": "Words"}, "the state is of Words"),
        "another vocabulary": ({**state, "fitted": {"characters": "ab"}}, "are version .*the tokenizer's state make"),
    }.values():
        with pytest.raises(BadConfigError, match=message):
            load_tokens(library.store, with_state(wrong), tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("LONG", "features.py:2[0-9]: the .* documents of split 'train' have .* tokens, which is no "
                     "sequence of 100000; lower TokenSet.context", id="too little text"),
        pytest.param("TYPO", "TokenSet.text: there is no column 'txt'; did you mean 'text'", id="no column"),
        pytest.param("INSTANT", "column 'as_of' is Datetime", id="no text"),
    ],
)  # fmt: skip
def test_what_cannot_be_tokenised_is_said(library: Any, run_step: Any, name: str, message: str) -> None:
    failure = corpus.tokens_of(library, run_step, corpus.ingested(library, run_step), name)
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert re.search(message, failure.message), failure.message


def test_documents_without_text_are_said(library: Any, run_step: Any) -> None:
    """Broken: a model would learn that one document's end is followed by the next one's."""
    for path in (library.home / "data/library").glob("p1/*.py"):
        path.write_text("")
    failure = corpus.tokens_of(library, run_step, corpus.ingested(library, run_step))
    assert isinstance(failure, Failure)
    assert re.search("the 'text' of [0-9]+ of [0-9]+ documents is empty; leave them out in ingest", failure.message)
    (library.home / "include/lm/some.sql").write_text("SELECT path, as_of, NULLIF(text, '') AS text FROM library")
    dataset = corpus.ingested(replace(library, pipeline="nulls"), run_step, transform="include/lm/some.sql")
    assert "documents is empty" in corpus.tokens_of(library, run_step, dataset, run_key="nulls").message
    (library.home / "include/lm/some.sql").write_text("SELECT * FROM library WHERE text <> ''")
    dataset = corpus.ingested(replace(library, pipeline="others"), run_step, transform="include/lm/some.sql")
    assert isinstance(corpus.tokens_of(library, run_step, dataset, run_key="others"), FeaturesRef)


def test_tokens_are_no_rows(library: Any, features: FeaturesRef, run_step: Any, tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match="holds tokens, not rows; read it by a loader"):
        open_split(library.store, features, "train", tmp_path)
    settings = {"feature_set": "include.lm.features:FEATURES", "online": {"store": "sqlite"}}
    failure = run_step(library, library.step_input("features", settings, features.parent, "online"))
    assert "features.online: include.lm.features:FEATURES is a TokenSet" in failure.message


@on_turn(1, 2)
def test_both_engines_give_the_same_tokens(library: Any, features: FeaturesRef, run_step: Any) -> None:
    """Broken: the order of the documents, and with it the model, would follow from the machines that read them."""
    dataset = corpus.ingested(replace(library, pipeline="spark"), run_step, engine="spark")
    on_spark = corpus.tokens_of(library, run_step, dataset, run_key="spark")

    def shards(ref: FeaturesRef) -> list[str]:
        manifest = json.loads(library.store.read(ref.artifacts["manifest"]))
        return [shard["sha256"] for split in manifest["splits"].values() for shard in split["shards"]]

    assert shards(on_spark) == shards(features)
    assert on_spark.version == features.version
