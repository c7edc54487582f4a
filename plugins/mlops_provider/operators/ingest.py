from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlops.contract.extensions import recipe_folders
from mlops.contract.refs import Ref
from mlops.contract.sections.ingest import Ingest
from mlops_provider.assets import dataset_asset, event_extra
from mlops_provider.deployment import Deployment
from mlops_provider.operators.base import StepOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class IngestOperator(StepOperator):
    """
    Store an immutable snapshot of the data as it was known at the end of the data interval.

    Settings: :class:`mlops.contract.sections.ingest.Ingest`. Returns a DatasetRef and updates the asset ``dataset://<pipeline>``.

    :param sections: settings of all steps of the pipeline, by step, in their JSON form: what they name is looked for in
        the recipe and in the table before anything is stored; None where they are not known
    """

    step = "ingest"
    section = Ingest

    def __init__(self, *, sections: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sections = sections or {}
        self.dataset = dataset_asset(self.pipeline)
        self.outlets = [*self.outlets, self.dataset]

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        return recipe_folders(settings)

    def connections(self, settings: Mapping[str, Any]) -> dict[str, str]:
        return {
            f"ingest.sources.{name}.connection": connection
            for name, source in settings["sources"].items()
            if (connection := source.get("connection")) is not None
        }

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        context["outlet_events"][self.dataset].extra = event_extra(ref)
