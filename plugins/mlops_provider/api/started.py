"""Requests for a run that changes the registry, or may, and the answer to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import Depends

from mlops.contract.rest import StartedRun
from mlops_provider.adoption import unpausing
from mlops_provider.api.idempotency import Asking
from mlops_provider.api.summaries import summary_of

ANSWERED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": StartedRun, "description": "It was asked for before"},
    202: {"description": "The run was started: `Location` is its address"},
}
"""For the OpenAPI document."""


class Release(Asking):
    """A request for such a run."""

    def started(
        self, run: Mapping[str, Any], is_new: bool, dag: Mapping[str, Any], place: str = "../../runs"
    ) -> StartedRun:
        """
        Answer with the run.

        :param dag: of the run
        :param place: where runs lie, seen from the request's address
        """
        if not is_new:
            self._response.status_code = 200
        summary = summary_of(run)
        self._response.headers["Location"] = f"{place}/{summary.id}"
        return StartedRun(**summary.model_dump(), waits_for=unpausing(dag) if summary.state == "queued" else None)


ReleaseDep = Annotated[Release, Depends(Release)]
