from __future__ import annotations

from pathlib import Path

import obstore
import pytest

from mlops_provider.committed import open_store


@pytest.mark.parametrize("name", ["plain", "a b", "50%20", "a#b", "a?b", "\u00fc"])
def test_the_store_is_the_folder_that_the_steps_write(tmp_path: Path, name: str) -> None:
    """Read as a URL, some names would mean another folder, and sensors would wait for ever."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "ref.json").write_text("here")
    store = open_store(f"file://{folder}")
    assert bytes(obstore.get(store, "ref.json").bytes()) == b"here"
