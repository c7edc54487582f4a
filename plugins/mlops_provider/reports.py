"""``GET /mlops/reports/<key>``: the HTML reports of the store, for whoever may read the pipeline's DAG."""

from __future__ import annotations

import re

import obstore
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse

from mlops_provider.committed import open_store
from mlops_provider.deployment import Deployment

app = FastAPI(title="MLOps", description="Reports of the training pipelines")

_REPORT_KEY = re.compile(r"pipelines/(?P<pipeline>[a-z][a-z0-9_]*)/[a-z]+/\w[\w.-]*/report\.[0-9a-f]{12}\.html")
# The reports are files of their own: nothing in them may load from, or send to, anywhere else.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; sandbox allow-scripts"
)


@app.get("/reports/{key:path}", response_class=HTMLResponse)
async def report(key: str, request: Request, user: GetUserDep) -> HTMLResponse:
    """One report, by its key in the store."""
    match = _REPORT_KEY.fullmatch(key)
    if match is None:
        raise HTTPException(404, f"{key!r} is not the key of a report")
    requires_access_dag("GET", param_dag_id=match["pipeline"])(request, user)
    try:
        found = await obstore.get_async(open_store(Deployment.load().store), key)
        page = bytes(await found.bytes_async())
    except FileNotFoundError:
        raise HTTPException(404, f"there is no report {key!r} in the store") from None
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})
