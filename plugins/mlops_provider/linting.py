"""``mlops lint``: what is wrong with pipelines' files; what only the data can show, too."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console

from mlops.contract.extensions import recipe_folders
from mlops.contract.recipe_bounds import ways_out
from mlops.contract.section import SpecError, leaves
from mlops_provider.connections import connection_environment, store_environment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.handed_over import aside, deployment_of, find_stack, print_json, python_of
from mlops_provider.launchers.process import runtime_environment
from mlops_provider.recipe_imports import internal_imports
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import SUFFIX, load_pipeline, located, pipeline_files, why_broken


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What was found out about a pipeline's file."""

    file: str
    mistakes: list[str]
    """A sentence for each, with file, line and column where it is one of the file's."""
    done: list[str] = field(default_factory=list)
    """What was tried out with its data."""


def lint(options: argparse.Namespace, console: Console) -> int:
    """
    Say what is wrong with pipelines' files.

    :return: exit code: 1 where one is broken
    """
    out = aside() if options.json else None
    find_stack(options)
    found = []
    for path in _pipeline_files(options):
        found.append(checked := _check(options, path))
        for sentence in checked.mistakes or [f"{path}: ok"]:
            console.print(sentence, markup=False, soft_wrap=True)
        for sentence in checked.done:
            console.print(f"{path}: {sentence}", style="dim", markup=False, soft_wrap=True)
    if out is not None:
        print_json([asdict(each) for each in found], out)
    return int(any(each.mistakes for each in found))


def _check(options: argparse.Namespace, path: Path) -> Checked:
    try:
        pipeline = load_pipeline(path)
    except Exception as error:  # whatever is wrong with one of them, the others are looked at
        return Checked(file=str(path), mistakes=why_broken(path, error).splitlines())
    mistakes = [each for folder in pipeline.recipes() for each in _mistakes_of_code(options.home, folder, pipeline)]
    if not options.with_data:
        return Checked(file=str(path), mistakes=mistakes)
    tried = _try_with_data(options, path, pipeline)
    return replace(tried, mistakes=[*mistakes, *tried.mistakes])


def _mistakes_of_code(home: Path, folder: str, pipeline: Pipeline) -> Iterator[str]:
    yield from internal_imports(home / folder)
    # The recipe of the features is the one that is stored with the model.
    stored = folder in recipe_folders(pipeline.features.model_dump(mode="json"))
    yield from ways_out(home / folder, stored=stored)


def _pipeline_files(options: argparse.Namespace) -> list[Path]:
    """
    The files that are named, and those below the folders that are.

    :raises SpecError: where a folder has none
    """
    files: list[Path] = []
    for path in options.files or [options.home / "dags"]:
        found = pipeline_files(path) if path.is_dir() else [path]
        if not found:
            raise SpecError(f"{path}: there is no *{SUFFIX} in this folder, nor below it")
        files += found
    return files


def _try_with_data(options: argparse.Namespace, path: Path, pipeline: Pipeline) -> Checked:
    """Let the training runtime try it out, and say where in the file is what it finds."""
    deployment = deployment_of(options, pipeline.team)
    document = pipeline.model_dump(mode="json", by_alias=True)
    connections = {
        ".".join(keys): value for keys, value in leaves(document["ingest"], ("ingest",)) if keys[-1] == "connection"
    }
    try:
        secrets = connection_environment({place: name for place, name in connections.items() if name is not None})
    except StepFailedError as error:
        return Checked(file=str(path), mistakes=[f"{path}: {error}"])
    with tempfile.TemporaryDirectory(prefix="mlops-") as folder:
        told, findings = Path(folder, "pipeline.json"), Path(folder, "findings.json")
        told.write_text(json.dumps(document))
        python = python_of(deployment, "training")
        sys.stdout.flush()
        code = subprocess.run(
            [str(python), "-m", "mlops.commands", "lint", str(told), str(findings)],
            env=runtime_environment(deployment, os.environ) | store_environment(deployment) | secrets,
            check=False,
        ).returncode
        if not findings.exists():
            said = f"{path}: it could not be tried out: the process ended with code {code}"
            return Checked(file=str(path), mistakes=[said])
        found = json.loads(findings.read_text())
    complaints = [
        (tuple(keys), f"{'.'.join(keys)}: {line}")
        for keys, message in found["problems"]
        for line in message.split("\n")
    ]
    return Checked(file=str(path), mistakes=list(located(path, complaints)), done=found["done"])
