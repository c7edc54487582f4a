from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.engine.engines import collect


def put(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


@pytest.fixture
def texts(tmp_path: Path, read: Any) -> Any:
    """Reads ``library`` below the test's folder, as rows."""

    def read_texts(path: str = "library/**/*.py", sha256: str | None = None, **settings: Any) -> Any:
        return read("text", path=path, sha256=sha256, **settings)

    return read_texts


def test_each_file_is_a_row(tmp_path: Path, texts: Any) -> None:
    """Broken: line ends, or the folders of a machine, would be another corpus elsewhere."""
    put(tmp_path / "library", a="x = 1\r\n", b__c="ü\n", b__empty="")
    rows = collect(texts().rows).sort("path")
    assert rows.columns == ["path", "text", "as_of"]
    assert rows["path"].to_list() == ["a.py", "b/c.py", "b/empty.py"]
    assert rows["text"].to_list() == ["x = 1\r\n", "ü\n", ""]
    assert set(rows["as_of"]) == {datetime(2024, 1, 2, 23, 59, 59, 999_999, UTC)}, "the last day of the interval"
    elsewhere = collect(texts(path=f"{tmp_path}/library/**/*.py").rows)
    assert elsewhere.sort("path").equals(rows)
    assert collect(texts(path="library/b/c.py").rows)["path"].to_list() == ["c.py"]


def test_bytes_are_what_the_files_hold(tmp_path: Path, read: Any) -> None:
    """Broken: images that lie in folders, and are named by a table of labels, could not be learnt from."""
    files = {"cats/1.png": b"\x89PNG\r\n\x1a\n", "dogs/2.png": bytes(range(256)), "dogs/empty.png": b""}
    for name, data in files.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(data)
    rows = collect(read("bytes", path="images/**/*.png").rows).sort("path")
    assert rows.columns == ["path", "bytes", "as_of"]
    assert dict(rows.select("path", "bytes").iter_rows()) == files


def test_many_files_are_read_in_a_few_pieces(tmp_path: Path, texts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "library", **{f"f{number}": f"# {number}" for number in range(40)})
    monkeypatch.setattr("mlops.data.sources.whole_files.PIECE_BYTES", 30)
    rows = collect(texts().rows)
    assert sorted(rows["text"]) == sorted(f"# {number}" for number in range(40))


def test_objects_are_read_too(texts: Any, s3: str) -> None:
    import obstore
    from obstore.store import from_url

    obstore.put(from_url(s3), "library/a.py", b"x = 1")
    rows = collect(texts(path=f"{s3}/library/*.py").rows)
    assert rows.select("path", "text").rows() == [("a.py", "x = 1")]
    with pytest.raises(
        BadConfigError, match=r"sha256 is of files on a disk, and s3://bucket/library/\*\.py are objects"
    ):
        texts(path=f"{s3}/library/*.py", sha256="0" * 64)


def test_another_corpus_is_refused_with_its_digest(tmp_path: Path, texts: Any) -> None:
    """Broken: perplexities on another release of the library would be set beside each other."""
    put(tmp_path / "library", a="x", b="y")
    with pytest.raises(BadDataError, match="the 2 files of library/.* are not those") as caught:
        texts(sha256="0" * 64)
    digest = str(caught.value).partition("theirs is ")[2][:64]
    assert collect(texts(sha256=digest).rows).height == 2
    (tmp_path / "library/b.py").rename(tmp_path / "library/c.py")
    with pytest.raises(BadDataError, match=f"sha256 is {digest}, and theirs is"):
        texts(sha256=digest)


def test_a_file_that_is_no_text_is_named(tmp_path: Path, texts: Any) -> None:
    put(tmp_path / "library", a="x")
    (tmp_path / "library/b.py").write_bytes(b"\xff\xfe")
    with pytest.raises(BadDataError, match=r"library/b\.py is not text in UTF-8: .*; leave it out of the pattern"):
        texts()
