"""
Run under the training runtime: ``python store_watch.py STORE``. Until its standard input closes it reads every visible
ref of the store again and again, and all objects they name, checks the digests, and prints what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def named_objects(document: Any) -> Iterator[tuple[str, str]]:
    """Key and SHA-256 of every object that a document names, however deep."""
    if isinstance(document, dict):
        if {"key", "sha256"} <= document.keys():
            yield document["key"], document["sha256"]
        for value in document.values():
            yield from named_objects(value)
    elif isinstance(document, list):
        for value in document:
            yield from named_objects(value)


def problems(store: Path) -> Iterator[str]:
    """One sentence for each object that is missing or not what its ref says."""
    for ref in store.glob("pipelines/*/*/*/ref.json"):
        try:
            documents = [json.loads(ref.read_bytes())]
        except ValueError as error:
            yield f"{ref}: half written: {error}"
            continue
        for document in documents:
            for key, sha256 in named_objects(document):
                path = store / key
                if not path.is_file():
                    yield f"{ref} names {key}, which is not there"
                    continue
                data = path.read_bytes()
                if hashlib.sha256(data).hexdigest() != sha256:
                    yield f"{ref} names {key}, whose bytes are others"
                elif "manifest" in path.name and path.suffix == ".json":
                    documents.append(json.loads(data))


def main() -> int:
    store = Path(sys.argv[1])
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    found: set[str] = set()
    rounds = 0
    while True:
        found.update(problems(store))
        rounds += 1
        if closed.wait(0.2):
            break
    found.update(problems(store))
    num_refs = len(list(store.glob("pipelines/*/*/*/ref.json")))
    print(json.dumps({"problems": sorted(found), "rounds": rounds, "num_refs": num_refs}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
