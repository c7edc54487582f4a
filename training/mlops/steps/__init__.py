"""One thin module per step: read refs, call the library, return a ref. Started by ``python -m mlops.steps``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlops.code import load_attribute
from mlops.contract.code_files import code_digest
from mlops.contract.refs import Artifact, FeaturesRef
from mlops.contract.section import SectionT, check_section
from mlops.contract.step import RunIdentity, StepError, StepInput
from mlops.process import ProcessSettings
from mlops.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """Everything that a step module's ``run`` is given."""

    input: StepInput
    deployment: ProcessSettings
    store: Store
    scratch: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """Local folder that is removed when the step ends."""

    @property
    def config(self) -> Mapping[str, Any]:
        return self.input.config

    def section(self, kind: type[SectionT]) -> SectionT:
        """
        Return the step's settings.

        :raises SpecError: where the document was made by another release
        """
        return check_section(kind, self.config, self.input.step)

    @property
    def run(self) -> RunIdentity:
        return self.input.run

    @property
    def place(self) -> str:
        return self.input.place

    @property
    def features(self) -> FeaturesRef:
        """The features that are trained on, with or without a study in between."""
        assert self.input.ref is not None, "a training has an input"
        return self.input.ref.ancestor(FeaturesRef)

    def own(self, import_path: str) -> object:
        """
        Import what a recipe of the checkout calls ``package.module:NAME``.

        :raises BadConfigError: where there is no such thing, or it cannot be imported
        """
        return load_attribute(import_path, self.deployment.home)

    def check_code(self) -> None:
        """
        Check that the recipe's files are those that the run key names; what is loaded between two checks is of them.

        :raises StepError: where they are others
        """
        told, home = self.input, self.deployment.home
        if told.code and told.code != code_digest([home / path for path in told.code_paths]):
            raise StepError(
                f"the code in {', '.join(told.code_paths)} is not what the run was started with: it changed meanwhile, "
                f"or Airflow and the image of this runtime hold different versions; deploy both from one commit"
            )

    def publish(self, name: str, data: bytes | Path) -> Artifact:
        """Store a file of this step."""
        return self.store.put_artifact(self.place, name, data)
