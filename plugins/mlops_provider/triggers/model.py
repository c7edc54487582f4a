from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async

from mlops.contract.refs import ModelVersionRef
from mlops_provider.connections import login_of
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.mlflow_rest import LoginError, MlflowError
from mlops_provider.registry import find_model_version
from mlops_provider.triggers.base import RefTrigger


class ModelVersionTrigger(RefTrigger):
    """
    Fires with the ref of a registered model version. An unreachable registry is waited for.

    :param team: whose MLflow server is asked; None: the deployment's own
    :param model: registered model
    :param version: number, or None to wait for ``alias``
    :param alias: e.g. ``champion``
    :param poll_seconds: pause between two looks
    """

    def __init__(
        self, team: str | None, model: str, version: str | None, alias: str | None, poll_seconds: float
    ) -> None:
        super().__init__(poll_seconds)
        self.team = team
        self.model = model
        self.version = version
        self.alias = alias

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("team", "model", "version", "alias", "poll_seconds")
        return "mlops_provider.triggers.model.ModelVersionTrigger", {name: getattr(self, name) for name in names}

    async def look(self) -> ModelVersionRef | None:
        """The ref, if it is there now; an unreachable registry has none."""
        deployment = Deployment.load(self.team)
        login = await sync_to_async(login_of)("reader", deployment)
        try:
            return await find_model_version(
                deployment.tracking_uri, self.model, version=self.version, alias=self.alias, login=login
            )
        except LoginError as error:
            raise StepFailedError(str(error)) from error
        except MlflowError as error:
            self.log.warning("%s; asking again in %s s", error, self.poll_seconds)
            return None
