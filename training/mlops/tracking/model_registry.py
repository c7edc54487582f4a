"""The model registry's versions, aliases and tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mlops.tracking.connection import was_outrun
from mlops.tracking.run import translated
from mlops.tracking.stored_model import StoredModel

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

REF_TAG: Final = "mlops.ref"
"""Tag with the ReportRef that a version was registered for, as JSON: the whole way back to the data."""
DIGEST_TAG: Final = "mlops.ref_digest"
"""Tag with the digest of that ref: one version per digest."""
_TRIES: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRegistry:
    """
    One registered model. Errors of the server are raised as :class:`~mlops.tracking.connection.TrackingError`.

    :param name: name of the registered model, which is made with the first version
    """

    client: MlflowClient
    name: str

    def aliases(self) -> dict[str, str]:
        """Return the versions by alias, as they are now; empty if there is no such model."""
        from mlflow.exceptions import MlflowException

        with translated(f"cannot read model {self.name!r}"):
            try:
                aliases = self.client.get_registered_model(self.name).aliases
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                return {}
        return {alias: str(version) for alias, version in aliases.items()}

    def version_of_alias(self, alias: str) -> str | None:
        """Return the version that the alias names now; None if there is no such alias or no such model."""
        return self.aliases().get(alias)

    def versions(self) -> list[ModelVersion]:
        """Return the versions, newest first."""
        with translated(f"cannot search the versions of model {self.name!r}"):
            found = self.client.search_model_versions(f"name = '{self.name}'")
        return sorted(found, key=lambda version: -int(version.version))

    def has(self, version: str) -> bool:
        from mlflow.exceptions import MlflowException

        with translated(f"cannot read version {version} of model {self.name!r}"):
            try:
                self.client.get_model_version(self.name, version)
            except MlflowException as error:
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise
                return False
        return True

    def tags_of(self, version: str) -> dict[str, str]:
        with translated(f"cannot read version {version} of model {self.name!r}"):
            tags: dict[str, str] = self.client.get_model_version(self.name, version).tags
        return tags

    def versions_with_digest(self, digest: str) -> list[str]:
        """Return the versions with that digest, oldest first."""
        with translated(f"cannot search the versions of model {self.name!r}"):
            found: list[ModelVersion] = self.client.search_model_versions(
                f"name = '{self.name}' and tags.`{DIGEST_TAG}` = '{digest}'"
            )
        return sorted((str(version.version) for version in found), key=int)

    def tags_before(self, version: str) -> Iterator[dict[str, str]]:
        """Iterate over the tags of the versions before that one, newest first."""
        token = None
        while True:
            with translated(f"cannot search the versions of model {self.name!r}"):
                page = self.client.search_model_versions(
                    f"name = '{self.name}'", max_results=50, order_by=["version_number DESC"], page_token=token
                )
            yield from (found.tags for found in page if int(found.version) < int(version))
            if not (token := page.token):
                return

    def create(self, *, model: StoredModel, run_id: str, tags: Mapping[str, str], description: str) -> str:
        """Make a version."""
        from mlflow.exceptions import MlflowException

        with translated(f"cannot create a version of model {self.name!r}"):
            try:
                self.client.create_registered_model(self.name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            version = self.client.create_model_version(
                self.name,
                model.uri,
                run_id=run_id,
                model_id=model.model_id,
                tags=dict(tags),
                description=description,
                await_creation_for=0,
            )
        return str(version.version)

    def delete(self, version: str) -> None:
        """Delete a version; does nothing if another process has deleted it before."""
        from mlflow.exceptions import MlflowException

        with translated(f"cannot delete version {version} of model {self.name!r}"):
            try:
                self.client.delete_model_version(self.name, version)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise

    def set_alias(self, alias: str, version: str) -> bool:
        """
        Set an alias in one change of MLflow's database: a reader finds the version before or this one, never none.

        :return: False if there is no such version
        """
        from mlflow.exceptions import MlflowException

        with translated(f"cannot set alias {alias!r} of model {self.name!r} to version {version}"):
            try:
                _write(self.client.set_registered_model_alias, self.name, alias, version)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                return False
        return True

    def delete_alias(self, alias: str) -> None:
        with translated(f"cannot delete alias {alias!r} of model {self.name!r}"):
            self.client.delete_registered_model_alias(self.name, alias)

    def set_tag(self, version: str, tag: str, value: str) -> None:
        """Set a tag of a version; does nothing if the version is gone."""
        from mlflow.exceptions import MlflowException

        with translated(f"cannot set the tag {tag} of version {version} of model {self.name!r}"):
            try:
                _write(self.client.set_model_version_tag, self.name, version, tag, value)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise


def _write(write: Callable[..., object], *arguments: str) -> None:
    """Write, and try again if another process was quicker: MLflow then finds the row, and changes it."""
    from mlflow.exceptions import MlflowException

    for _ in range(_TRIES):
        try:
            write(*arguments)
        except MlflowException as error:
            if not was_outrun(error):
                raise
        else:
            return
    write(*arguments)


def model_names(client: MlflowClient) -> list[str]:
    """Return the names of all registered models, sorted."""
    with translated("cannot search the models"):
        names, token = [], None
        while True:
            page = client.search_registered_models(page_token=token)
            names += [model.name for model in page]
            if not (token := page.token):
                return sorted(names)
