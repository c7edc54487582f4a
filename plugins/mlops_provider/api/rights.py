"""What a user may do with DAGs, where that is not left to Airflow's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod

READ: Final = (None, "RUN", "TASK_INSTANCE")
"""What of a DAG one must be able to read to see how it stands; None: itself."""


def rights(dag_ids: Sequence[str], user: Any, method: ResourceMethod = "GET") -> Callable[..., bool]:
    """
    Return what says whether a user may read something of a DAG: ``may(dag_id)`` of itself, ``may(dag_id, "RUN")`` of
    what is Airflow's ``DagAccessEntity``.

    :param method: by which it is asked for: ``POST`` makes one
    """
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.configuration import conf
    from airflow.models.dag import DagModel

    manager = get_auth_manager()
    teams: dict[str, str | None] = {}
    if conf.getboolean("core", "multi_team", fallback=False):
        teams = DagModel.get_dag_id_to_team_name_mapping(list(dag_ids))

    def may(dag_id: str, what: str | None = None) -> bool:
        entity = None if what is None else DagAccessEntity(what)
        details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
        return bool(manager.is_authorized_dag(method=method, user=user, access_entity=entity, details=details))

    return may
