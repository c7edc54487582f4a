from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from mlops.signing.seals import ANCHOR, entry_key
from mlops_provider.anchors import AnchorError, InAirflow, note_newest
from mlops_provider.committed import open_store

ENTRIES = {number: f"entry {number}".encode() for number in (1, 2, 3)}
NAME = f"{ANCHOR}events"


class Variables:
    """Airflow's variables, of which others may write one just after us."""

    def __init__(self, known: int | None, others: int | None = None) -> None:
        self.values = {NAME: anchor(known)} if known else {}
        self.others = others

    def variable(self, key: str) -> str | None:
        return self.values.get(key)

    def set_variable(self, key: str, value: str, description: str) -> None:
        assert "audit" in description
        self.values[key] = value
        if self.others is not None:
            self.values[key], self.others = anchor(self.others), None


def digest(number: int) -> str:
    return hashlib.sha256(ENTRIES[number]).hexdigest()


def anchor(number: int) -> str:
    return json.dumps({"number": number, "sha256": digest(number)})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for number, data in ENTRIES.items():
        path = tmp_path / entry_key("events", number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


@pytest.mark.parametrize(
    ("variables", "newest"),
    [
        (Variables(None), 2),
        (Variables(1), 2),
        (Variables(2), 2),
        (Variables(3), 3),
        (Variables(None, others=1), 2),
        (Variables(1, others=3), 3),
    ],
    ids=["the first", "an older one", "the same", "a newer one", "an older one comes late", "a newer one comes late"],
)
def test_airflow_knows_the_newest_entry(store: Path, variables: Variables, newest: int) -> None:
    """Broken: Airflow would go back to an older entry, and all after it could be cut off."""
    assert note_newest(InAirflow(variables), open_store(f"file://{store}"), "events", 2, digest(2)) is None
    assert variables.values == {NAME: anchor(newest)}


@pytest.mark.parametrize("known", [1, 2, 3])
@pytest.mark.parametrize("removed", [True, False], ids=["removed", "changed"])
def test_a_new_entry_hides_no_tampering(store: Path, known: int, removed: bool) -> None:
    """Broken: who changed the trail would only have to wait for the next command."""
    path = store / entry_key("events", known)
    path.unlink() if removed else path.write_bytes(b"another")
    variables = Variables(known)
    said = note_newest(InAirflow(variables), open_store(f"file://{store}"), "events", 2, digest(2))
    assert said is not None
    assert f"tampered with: {entry_key('events', known)}" in said
    assert ("is missing" if removed else "is another one") in said
    assert variables.values == {NAME: anchor(known)}


@pytest.mark.parametrize("value", ["", "x", "[]", '{"number": 2}', '{"number": "2", "sha256": "0"}'])
def test_a_variable_that_is_no_anchor_is_named(store: Path, value: str) -> None:
    """Broken: who edits the variable has each task of the model fail by an error that names nothing."""
    variables = Variables(None)
    variables.values[NAME] = value
    with pytest.raises(AnchorError, match=r"Airflow's variable 'mlops_audit.events' is .*, not the number"):
        note_newest(InAirflow(variables), open_store(f"file://{store}"), "events", 2, digest(2))
    assert variables.values == {NAME: value}
