"""The API's own document, beside the one that people read."""

from __future__ import annotations

import re

from project import REPOSITORY

from mlops_provider.api.app import app


def test_each_path_is_in_the_documentation() -> None:
    """Broken: what the API can do is found by nobody who does not read its code."""
    described = re.findall(r"/[\w{}/-]+", (REPOSITORY / "docs/rest.md").read_text())
    told = {_alike(path.rstrip("/")) for path in described}
    assert [path for path in app.openapi()["paths"] if _alike(path) not in told] == []


def _alike(path: str) -> str:
    """What a part of a path is called is for the reader."""
    return re.sub(r"\{\w+\}", "{}", path)
