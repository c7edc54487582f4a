"""What can be known of a pipeline by its columns alone: a check of a run before it stores anything."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl

from mlops.code import load_attribute
from mlops.contract.extensions import is_of_recipe
from mlops.contract.section import check_section
from mlops.contract.sections.evaluate import Evaluate
from mlops.contract.sections.ingest import Ingest
from mlops.contract.sections.validate import Validate
from mlops.contract.step import BadConfigError, StepError
from mlops.data.engine.engines import Table, without_rows
from mlops.data.snapshots.canonical import normalise
from mlops.features.derivation import Derivation
from mlops.features.feature_set import FeatureSet
from mlops.features.token_set import TokenSet
from mlops.rehearsal.columns import check_columns
from mlops.rehearsal.names import file_problem, names_of_recipe
from mlops.rehearsal.problems import Problems


@dataclass(frozen=True, slots=True)
class Definitions:
    """
    The settings of a pipeline's steps, held against the recipe's files and against the table's columns.

    Nothing is imported but the feature set: a later step may run in an image that has more packages.
    """

    sections: Mapping[str, Any]
    problems: Problems

    @classmethod
    def of(cls, sections: Mapping[str, Any], home: Path) -> Self:
        """
        Look for whatever of the recipe the settings name.

        :param sections: by step, in their JSON form; none: nothing is checked
        :param home: project folder
        """
        problems = Problems(home)
        for keys, value in names_of_recipe(sections):
            message = _not_defined(value, home) if is_of_recipe(value) else file_problem(value, home)
            if message is not None:
                problems.add(*keys, message=message)
        return cls(sections, problems)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Add the mistakes that are known already to an error that is raised within, and that no retry makes right."""
        try:
            yield
        except StepError as error:
            if self.problems.found and not error.retryable:
                raise BadConfigError(f"{error}\n{self._listed()}", **error.details) from error
            raise

    def check(self, table: Table) -> None:
        """
        Check the columns that are named against a table's; its rows are not read.

        :raises BadConfigError: with a line for each mistake, those of :meth:`of` among them
        """
        if not self.sections:
            return
        ingest = check_section(Ingest, self.sections["ingest"], "ingest")
        validate = check_section(Validate, self.sections["validate"], "validate")
        evaluate = check_section(Evaluate, self.sections["evaluate"], "evaluate")
        empty: pl.DataFrame = normalise(without_rows(table).to_native().collect())
        check_columns(ingest, validate, evaluate, empty, self.problems)
        self._check_features(self.sections["features"]["feature_set"], empty)
        if self.problems.found:
            raise BadConfigError(f"the pipeline does not fit its data, of which nothing was stored:\n{self._listed()}")

    def _check_features(self, import_path: str, empty: pl.DataFrame) -> None:
        with self.problems.caught("features", "feature_set"):
            try:
                definition = load_attribute(import_path, self.problems.home)
            except BadConfigError as error:
                if isinstance(error.__cause__, ImportError):
                    return  # may be installed where the features are made
                raise
            if isinstance(definition, FeatureSet):
                Derivation.of(definition, empty.schema, labelled=True)
            elif isinstance(definition, TokenSet):
                definition.texts(empty)

    def _listed(self) -> str:
        return "\n".join(
            f"- {'.'.join(keys)}: {line}" for keys, message in self.problems.found for line in message.split("\n")
        )


def _not_defined(import_path: str, home: Path) -> str | None:
    """Say why a recipe has no such name, as far as its text shows; None where it has."""
    module, _, name = import_path.partition(":")
    parts = module.split(".")
    files = [home.joinpath(*parts).with_suffix(".py"), home.joinpath(*parts, "__init__.py")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return f"{import_path!r}: {file_problem(str(files[0].relative_to(home)), home)}"
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        return f"{file.relative_to(home)}{line}: it cannot be read as Python: {error}"
    names = set(_names(tree))
    if name in names or "*" in names or "__getattr__" in names:
        return None
    near = difflib.get_close_matches(name, names, n=1)
    return f"{import_path!r}: {file.relative_to(home)} has no {name!r}" + (
        f"; did you mean {near[0]!r}?" if near else ""
    )


def _names(tree: ast.Module) -> Iterator[str]:
    """Names that a module may have: all that it binds anywhere, so that none is missed."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]
