"""Refs that an operator decides by, or shows to people: an XCom can be edited, so the store is asked."""

from __future__ import annotations

import asyncio
from typing import Any

from mlops.contract.ref_difference import distrust
from mlops.contract.refs import RefError, RefT
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError


def verified(kind: type[RefT], wire: Any, task_id: str, deployment: Deployment) -> RefT:
    """
    Read a ref and compare it, with its parents, with what was committed at its place.

    :raises StepFailedError: naming the first field that differs
    :raises StepRetryableError: where the store does not answer
    """
    from mlops_provider.committed import read_committed
    from mlops_provider.connections import store_of
    from mlops_provider.patience import store_errors

    store = deployment.store
    try:
        with store_errors(store, f"task {task_id!r} cannot read its input"):
            ref = kind.from_wire(wire)
            committed = asyncio.run(read_committed(store_of(deployment), ref.place)) if ref.place else None
    except RefError as error:
        raise StepFailedError(f"task {task_id!r}: {error}") from error
    if (why := distrust(ref, committed, f"the input of task {task_id!r}", store)) is not None:
        raise StepFailedError(why)
    return ref
