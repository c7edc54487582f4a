"""The deployment's files, read. Standard library and YAML only."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
KUBERNETES = REPOSITORY / "include/kubernetes"


@dataclass
class Stage:
    """One ``FROM`` of the Dockerfile and what follows it."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    """Instruction and the rest of its line."""

    def of(self, instruction: str) -> list[str]:
        return [rest for word, rest in self.steps if word == instruction]


@cache
def stages() -> dict[str, Stage]:
    text = re.sub(r"^\s*#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.M)
    found: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]
            found[name] = stage = Stage(name, base)
        elif word and found:
            stage.steps.append((word, rest))
    return found


def lineage(name: str) -> list[Stage]:
    """A stage and those it is built from, itself first."""
    chain = []
    while name in stages():
        chain.append(stages()[name])
        name = chain[-1].base
    return chain


def sources(stage: Stage) -> set[str]:
    """Files and folders of the checkout that a stage reads, and nothing of what it copies from other stages."""
    mounted = {path for run in stage.of("RUN") for path in re.findall(r"--mount=type=bind,source=([^,]+)", run)}
    copied = [copy.split() for copy in stage.of("COPY") if not copy.startswith("--from=")]
    return mounted | {path for words in copied for path in words[:-1]}


def all_sources(name: str) -> set[str]:
    """What an image is made of, through every stage that it copies from."""
    result: set[str] = set()
    for stage in lineage(name):
        result |= sources(stage)
        for copy in stage.of("COPY"):
            if origin := re.match(r"--from=(\S+)", copy):
                result |= all_sources(origin[1])
    return result


def sent_to_the_build(path: str) -> bool:
    """Whether ``.dockerignore`` lets a path through: the last line that matches it, or a folder above it, decides."""
    sent = True
    parts = Path(path).parts
    above = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if not line or line.startswith("#"):
            continue
        names = [*above, *parts] if "**/" in line else above
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            sent = line.startswith("!")
    return sent


def packages_of(path: str) -> set[str]:
    """What a lock file holds."""
    return set(re.findall(r"^([a-z0-9._-]+)==", (REPOSITORY / path).read_text(), flags=re.M))


@cache
def compose() -> dict[str, Any]:
    return yaml.safe_load((REPOSITORY / "docker-compose.yaml").read_text())  # type: ignore[no-any-return]


@cache
def manifests() -> list[dict[str, Any]]:
    """Every object of the numbered files, in order."""
    return [
        document
        for path in sorted(KUBERNETES.glob("[0-9]*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document
    ]


def of_kind(kind: str, namespace: str | None = None) -> dict[str, dict[str, Any]]:
    """Objects of a kind, by name."""
    return {
        each["metadata"]["name"]: each
        for each in manifests()
        if each["kind"] == kind and namespace in (None, each["metadata"].get("namespace"))
    }


@cache
def values(name: str) -> dict[str, Any]:
    """A Helm values file."""
    return yaml.safe_load((KUBERNETES / name).read_text())  # type: ignore[no-any-return]


@cache
def airflow_options() -> dict[str, set[str]]:
    """Every section of Airflow's configuration, and its options."""
    from importlib.util import find_spec

    spec = find_spec("airflow")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0], "config_templates/config.yml")
    return {section: set(found["options"]) for section, found in yaml.safe_load(path.read_text()).items()}


def image_tags(document: Any) -> list[str]:
    """Every ``image:`` in a document."""
    if isinstance(document, dict):
        own = [document["image"]] if isinstance(document.get("image"), str) else []
        return own + [tag for value in document.values() for tag in image_tags(value)]
    if isinstance(document, list):
        return [tag for value in document for tag in image_tags(value)]
    return []


def pinned(image: str) -> bool:
    """``name:1.2``, ``name:1.2.3-variant``: a version, not a moving word."""
    return re.fullmatch(r"[\w./-]+:\d+(\.\d+)+(-[\w.]+)*", image) is not None
