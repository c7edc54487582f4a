"""Requests that start an experiment."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from fastapi import Depends
from pydantic import BaseModel, ValidationError

from mlops.contract.refs import digest_of
from mlops.contract.rest import NewRun, RunSummary
from mlops.contract.section import SpecError
from mlops_provider.api.airflow import Airflow, readable_dags
from mlops_provider.api.deployments import of_name
from mlops_provider.api.fair_order import Waiting, run_after
from mlops_provider.api.idempotency import Asking
from mlops_provider.api.problems import Problem, sentence
from mlops_provider.api.summaries import summary_of
from mlops_provider.connections import store_of
from mlops_provider.experiments.dags import TASK, text_of
from mlops_provider.experiments.inputs import snapshot
from mlops_provider.experiments.names import ASKED_AT, dag_id_of, person_of, place_of, tried_out
from mlops_provider.experiments.request import Request
from mlops_provider.experiments.sent_recipes import keep
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import changed_pipeline

_PREFIX: Final = "experiment__"
AskedT = TypeVar("AskedT", bound=BaseModel)
ASKED_BEFORE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": RunSummary, "description": "It was asked for before"}
}


class Translated(NamedTuple):
    """A request of ``/runs`` that another one is translated into."""

    asked: NewRun
    fields: Mapping[str, str]
    """Of the other request, in which its settings were given, for messages."""
    noted: Mapping[str, str] = MappingProxyType({})
    """See :meth:`Submission.start`."""


class Submission(Asking):
    """A request that starts an experiment."""

    async def start(
        self,
        asked: NewRun,
        place: str = "runs",
        text: str | None = None,
        fields: Mapping[str, str] = MappingProxyType({}),
        check: Callable[[Pipeline], None] = lambda pipeline: None,
        request: str | None = None,
        noted: Mapping[str, Any] = MappingProxyType({}),
        code: Mapping[str, bytes] = MappingProxyType({}),
    ) -> RunSummary:
        """
        :param place: where its address lies, seen from the request's
        :param text: of the pipeline's file, where it was read already
        :param fields: of the request, in which settings were given, for messages
        :param check: raises SpecError where what is tried out, the pipeline with these settings, cannot be
        :param request: digest of the request that was translated into this one
        :param noted: parameters of :data:`mlops_provider.experiments.names.NOTED`
        :param code: zips of recipes, by their folders, whose digests are in ``asked``
        :raises SpecError: naming the setting and the fix, before anything costs time
        """
        dag_id = dag_id_of(asked.pipeline)
        once = replace(self.once(dag_id, _PREFIX, asked.conf()), request=request)
        # Not checked again: the pipeline's file may have changed since. A translated one was looked for before that.
        found, is_new = (await once.before(self.airflow) if request is None else None), False
        if found is None:
            text = text or await text_of_pipeline(asked.pipeline, self.airflow)
            # It reads YAML: nothing for the event loop.
            await asyncio.to_thread(_check_settings, asked, text, fields, check)
            if asked.dataset is not None:
                store = await of_name(asked.pipeline, store_of)
                await asyncio.to_thread(snapshot, store, asked.pipeline, person_of(self._user), asked.dataset)
            if code:
                await self._keep(code, asked, dag_id)
            queued = await self.airflow.every(
                f"/dags/{dag_id}/dagRuns", "dag_runs", state="queued", order_by="run_after"
            )
            waiting = [
                Waiting(
                    each["triggering_user_name"],
                    datetime.fromisoformat(each["run_after"]),
                    "low" if (each["conf"] or {}).get("priority") == "low" else "normal",
                )
                for each in queued
            ]
            now = datetime.now(UTC)
            at = run_after(waiting, self._user, now, asked.priority)
            # It is asked for now, also where it comes before what was asked for earlier.
            instant = {ASKED_AT: now.isoformat()} if at < now else {}
            found, is_new = await once.trigger(self.airflow, at, {**noted, **instant})
        return self._answered(found, is_new, place)

    async def start_translated(
        self,
        pipeline: str,
        asked: BaseModel,
        translate: Callable[[str], Translated],
        place: str = "runs",
        code: Mapping[str, bytes] = MappingProxyType({}),
    ) -> RunSummary:
        """
        Start what a request of another form asks for.

        :param asked: the request
        :param translate: makes a request of this form by the text of the pipeline's file
        :param place: see :meth:`start`, as for code
        """
        request = digest_of({"form": type(asked).__name__, "body": asked.model_dump(mode="json")})
        once = replace(self.once(dag_id_of(pipeline), _PREFIX, {}), request=request)
        # What it was translated into when it was asked for before counts, whatever the file says by now.
        if (found := await once.before(self.airflow)) is not None:
            return self._answered(found, False, place)
        text = await text_of_pipeline(pipeline, self.airflow)
        run = await asyncio.to_thread(translate, text)
        return await self.start(run.asked, place, text, run.fields, request=request, noted=run.noted, code=code)

    async def _keep(self, code: Mapping[str, bytes], asked: NewRun, dag_id: str) -> None:
        # Before the run that looks for it.
        await self.check_may_trigger(dag_id)
        store = await of_name(asked.pipeline, store_of)
        await keep(store, place_of(self._user, asked.pipeline, {"name": asked.name}), code)

    def _answered(self, run: Mapping[str, Any], is_new: bool, place: str) -> RunSummary:
        if not is_new:
            self._response.status_code = 200
        summary = summary_of(run)
        self._response.headers["Location"] = f"{place}/{summary.id}"
        return summary


SubmissionDep = Annotated[Submission, Depends(Submission)]


def made(kind: type[AskedT], **fields: Any) -> AskedT:
    """
    Return a request that another one is translated into.

    :raises SpecError: where it cannot be one
    """
    try:
        return kind(**fields)
    except ValidationError as error:
        raise SpecError("\n".join(sentence(each, each["loc"]) for each in error.errors())) from None


async def text_of_pipeline(pipeline: str, airflow: Airflow) -> str:
    """
    Return the text of a pipeline's file.

    :raises Problem: where there is none that the asker may read
    """
    task = await airflow.found(f"/dags/{dag_id_of(pipeline)}/tasks/{TASK}")
    if task is None or not task["doc_md"]:
        raise await no_pipeline(pipeline, airflow)
    return text_of(task["doc_md"])


async def no_pipeline(pipeline: str, airflow: Airflow, is_night: bool = False) -> Problem:
    found = await readable_dags(airflow)
    names = sorted(each for each in (found if is_night else map(tried_out, found)) if each and not tried_out(each))
    near = difflib.get_close_matches(pipeline, names, n=1)
    others = f"there are {', '.join(names) or 'none'}{'' if is_night else ', those in YAML'}"
    what = "you may read" if is_night else "may be tried out"
    return Problem(
        404, f"there is no pipeline {pipeline!r} that {what}: {f'did you mean {near[0]}?' if near else others}"
    )


def _check_settings(asked: NewRun, text: str, fields: Mapping[str, str], check: Callable[[Pipeline], None]) -> None:
    """
    Check what is asked for by the pipeline's file.

    :param fields: see :meth:`Submission.start`, as for check
    :raises SpecError: naming the setting and the fix
    """
    request = Request.of_params(asked.model_dump(), fields)
    pipeline = request.checked(
        lambda changes: changed_pipeline(text, asked.pipeline, changes, request.option("settings"), request.fields)
    )
    request.interval(pipeline, datetime.now(UTC))
    check(pipeline)
