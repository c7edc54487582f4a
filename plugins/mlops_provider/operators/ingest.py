from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlops_provider.assets import dataset_asset
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.operators.base import StepOperator, recipe_folder
from mlops_provider.operators.connections import resolve_connection
from mlops_provider.refs import Ref
from mlops_provider.spec import Ingest
from mlops_provider.step import connection_variable

if TYPE_CHECKING:
    from airflow.sdk import Context


class IngestOperator(StepOperator):
    """
    Store an immutable snapshot of the data as it was known at the end of the data interval.

    Settings: :class:`mlops_provider.spec.Ingest`. Returns a DatasetRef and updates the asset ``dataset://<pipeline>``.
    """

    step = "ingest"
    section = Ingest

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        assert self.pipeline is not None
        self.dataset = dataset_asset(self.pipeline)
        self.outlets = [*self.outlets, self.dataset]

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        transform = settings["transform"]
        if transform is None:
            return []
        return [str(Path(*Path(transform).parts[:2])) if transform.endswith(".sql") else recipe_folder(transform)]

    def environment(self, settings: Mapping[str, Any]) -> dict[str, str]:
        found: dict[str, tuple[str, str]] = {}
        for name, source in settings["sources"].items():
            if (connection := source.get("connection")) is None:
                continue
            variable = connection_variable(connection)
            if variable in found and found[variable][0] != connection:
                raise StepFailedError(
                    f"ingest.sources.{name}.connection: {connection!r} and {found[variable][0]!r} differ only in case "
                    "or punctuation; rename one of these connections"
                )
            found[variable] = connection, resolve_connection(f"ingest.sources.{name}.connection", connection)
        return {variable: text for variable, (_, text) in found.items()}

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        context["outlet_events"][self.dataset].extra = {"ref": ref.to_wire()}
