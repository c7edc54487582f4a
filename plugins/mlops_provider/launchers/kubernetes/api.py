"""The calls to the Kubernetes API, as JSON. Who it is and how one logs in, Airflow's connection knows."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import tenacity

if TYPE_CHECKING:
    from aiohttp import ClientResponse
    from kubernetes_asyncio.client import ApiClient

Manifest = Mapping[str, Any]

TRY_SECONDS: Final = 300.0
"""How long a call is tried again that an API server does not answer, for who does not say it."""
_SAY_SECONDS: Final = 900.0
"""Between two lines of the log about the same outage."""
_CONNECT_SECONDS: Final = 10.0
_CALL_SECONDS: Final = 30.0
"""Between two bytes."""
_SIDE_CALL_SECONDS: Final = 10.0
"""The same, of a call that a Job is followed without."""
WATCH_SECONDS: Final = 240
_WATCH_SILENCE_SECONDS: Final = WATCH_SECONDS + 15.0
_LOG_SILENCE_SECONDS: Final = 300.0
"""A log may be silent for hours. A connection that is gone is silent too: it is opened again."""
_LONGEST_LINE: Final = 4 << 20
"""Bytes of a line that are kept: a program may write without end. No object of the API is as long."""
_MERGE_PATCH: Final = "application/merge-patch+json"

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """The API server answered that it will not."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"Kubernetes answered {status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message

    @property
    def may_pass(self) -> bool:
        return self.status == 429 or self.status >= 500

    @property
    def is_over_quota(self) -> bool:
        """Whether the namespace has as many objects as its ResourceQuota lets it have, or asks for as much."""
        return self.status == 403 and "exceeded quota" in self.message


class UnreachableError(Exception):
    """There was no answer."""


class NoClusterError(UnreachableError):
    """Nothing says where the cluster is, or who one is there."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Where objects of a kind are."""

    root: str
    plural: str

    def path(self, namespace: str, name: str = "") -> str:
        return f"{self.root}/namespaces/{namespace}/{self.plural}" + (f"/{name}" if name else "")


JOBS = Kind("/apis/batch/v1", "jobs")
PODS, SECRETS, SERVICES, EVENTS = (Kind("/api/v1", name) for name in ("pods", "secrets", "services", "events"))
_QUEUES: Final = "/apis/visibility.kueue.x-k8s.io/v1beta2"
"""Kueue's answers about who waits."""
_KINDS = {"Secret": SECRETS, "Service": SERVICES, "Job": JOBS}


class Api:
    """
    One namespace of a cluster. Calls wait and try again where the server is away or overloaded.

    Made by :func:`open_api`.
    """

    def __init__(self, client: ApiClient, namespace: str, try_seconds: float = TRY_SECONDS) -> None:
        self._client = client
        self.namespace = namespace
        self._try_seconds = try_seconds

    async def create(self, manifest: Manifest) -> Manifest | None:
        """:return: the object; None where there is one of that name already"""
        kind = _KINDS[manifest["kind"]]
        try:
            return await self._call("POST", kind.path(self.namespace), body=manifest)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return None
            raise

    async def get(self, kind: Kind, name: str) -> Manifest | None:
        try:
            return await self._call("GET", kind.path(self.namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: Kind, *, once: bool = False, **selectors: str) -> Manifest:
        """
        :param once: not tried again where it fails: something goes on without it
        :param selectors: ``labelSelector``, ``fieldSelector``
        """
        return await self._call("GET", kind.path(self.namespace), once=once, query=selectors)

    async def workloads_ahead(self, queue: str, job_uid: str) -> int | None:
        """
        How many workloads Kueue will admit before a Job. Asked once: its server may be away while the others answer.

        :param queue: the Job's LocalQueue
        :return: None where the Job does not wait there, or Kueue does not say
        :raises ApiError: where this may not be read, or Kueue's server is away
        """
        path = f"{_QUEUES}/namespaces/{self.namespace}/localqueues/{queue}/pendingworkloads"
        try:
            waiting = (await self._call("GET", path, once=True))["items"]
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        positions = (
            workload["positionInClusterQueue"]
            for workload in waiting
            if any(owner["uid"] == job_uid for owner in workload["metadata"].get("ownerReferences") or ())
        )
        return next(positions, None)

    async def patch(self, kind: Kind, name: str, change: Manifest, *, once: bool = False) -> None:
        """
        :param change: merged into the object
        :param once: not tried again where it fails: something goes on without it
        """
        path = kind.path(self.namespace, name)
        await self._call("PATCH", path, once=once, body=change, content_type=_MERGE_PATCH)

    async def delete(self, kind: Kind, name: str, uid: str, *, at_once: bool = False) -> None:
        """
        No object of that uid: nothing to do.

        :param at_once: what it owns goes after it; else before it, so that it is there as long as anything of it
        """
        options = {"propagationPolicy": "Background" if at_once else "Foreground", "preconditions": {"uid": uid}}
        try:
            await self._call("DELETE", kind.path(self.namespace, name), body=options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def watch(
        self, kind: Kind, on_trouble: Callable[[Exception], None], **selectors: str
    ) -> AsyncIterator[Mapping[str, Manifest]]:
        """
        The objects by uid, now and after each change, for ever; over whatever the server does.

        :param on_trouble: called with an error for each time that it does something
        """
        pause = 0.5
        while True:
            try:
                # Tried again here, where people are told.
                listed = await self._call(
                    "GET", kind.path(self.namespace), once=True, silence=_CALL_SECONDS, query=selectors
                )
                objects = {item["metadata"]["uid"]: item for item in listed["items"]}
                yield dict(objects)
                pause = 0.5
                version = listed["metadata"]["resourceVersion"]
                async for event in self._events(kind, version, selectors):
                    thing = event["object"]
                    if event["type"] == "ERROR":  # too old: list again
                        break
                    if event["type"] == "DELETED":
                        objects.pop(thing["metadata"]["uid"], None)
                    elif event["type"] in ("ADDED", "MODIFIED"):
                        objects[thing["metadata"]["uid"]] = thing
                    yield dict(objects)
            except (ApiError, UnreachableError) as error:
                if isinstance(error, ApiError) and not error.may_pass and error.status != 410:
                    raise
                on_trouble(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 10.0)

    async def log(self, pod: str, container: str, since: str | None, *, follow: bool) -> AsyncIterator[bytes]:
        """
        Lines of a container's log, each with its time.

        :param since: time of a line, RFC 3339; whole seconds count
        :param follow: as they are written, until the log ends
        :raises ApiError: with status 400 where it has not started yet
        """
        query = {"container": container, "follow": json.dumps(follow), "timestamps": "true"}
        if since is not None:
            query["sinceTime"] = since
        path = PODS.path(self.namespace, pod) + "/log"
        async with self._stream(path, query, _LOG_SILENCE_SECONDS) as response:
            async for line in _lines(response):
                yield line

    async def _events(self, kind: Kind, version: str, selectors: Mapping[str, str]) -> AsyncIterator[Manifest]:
        query = {
            **selectors,
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
            "allowWatchBookmarks": "true",
        }
        async with self._stream(kind.path(self.namespace), query, _WATCH_SILENCE_SECONDS) as response:
            async for line in _lines(response):
                try:
                    event = json.loads(line)
                except ValueError:  # cut off
                    return
                yield event

    @asynccontextmanager
    async def _stream(self, path: str, query: Mapping[str, str], silence: float) -> AsyncIterator[ClientResponse]:
        import aiohttp

        try:
            async with asyncio.timeout(_CALL_SECONDS):
                response = await self._request("GET", path, query=query, silence=silence)
            try:
                yield response
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{type(error).__name__}: {error}") from error

    async def _call(
        self, method: str, path: str, *, once: bool = False, silence: float | None = None, **request: Any
    ) -> Manifest:
        import aiohttp

        silence = silence or (_SIDE_CALL_SECONDS if once else _CALL_SECONDS)
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda error: _may_pass(error) or (method == "POST" and _crossed(error))),
            wait=tenacity.wait_exponential_jitter(initial=0.5, max=10.0),
            stop=tenacity.stop_after_delay(0.0 if once else self._try_seconds),
            before_sleep=_say_rarely,
            reraise=True,
        ):
            with attempt:
                try:
                    response = await self._request(method, path, silence=silence, **request)
                    answer: Manifest = await response.json(content_type=None)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    raise UnreachableError(f"{type(error).__name__}: {error}") from error
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        *,
        silence: float,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> ClientResponse:
        import aiohttp

        response: ClientResponse = await self._client.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=aiohttp.ClientTimeout(
                connect=_CONNECT_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=silence
            ),
        )
        if response.status < 400:
            return response
        said = await response.read()
        try:
            status = json.loads(said)
            raise ApiError(response.status, status.get("reason") or "", status.get("message") or "")
        except (json.JSONDecodeError, AttributeError):  # some proxy's words
            raise ApiError(response.status, response.reason or "", said[:500].decode(errors="replace")) from None


@asynccontextmanager
async def open_api(connection: str | None, namespace: str, try_seconds: float = TRY_SECONDS) -> AsyncIterator[Api]:
    """
    :param connection: Airflow connection id; None: the cluster that this process runs in, else the user's kubeconfig
    :param try_seconds: how long a call waits for a server that is away
    :raises NoClusterError: where there is neither, or no such connection
    """
    # They take a second to import.
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
    from airflow.sdk.exceptions import AirflowException
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import ConfigException

    inside = True if connection is None and "KUBERNETES_SERVICE_HOST" in os.environ else None
    settings = Configuration()
    # A log stream is a connection for as long as its pod lives: with as many pods as the limit the watches would wait.
    settings.connection_pool_maxsize = 0
    async with AsyncExitStack() as stack:
        try:
            hook = AsyncKubernetesHook(conn_id=connection, in_cluster=inside, client_configuration=settings)
            client = await stack.enter_async_context(hook.get_conn())
        except (ConfigException, AirflowException) as error:
            raise NoClusterError(
                f"the cluster is not known: {error}; set [mlops] kubernetes_connection, or KUBECONFIG"
            ) from error
        yield Api(client, namespace, try_seconds)


async def _lines(response: ClientResponse) -> AsyncIterator[bytes]:
    """Without their ends; of one that is longer than :data:`_LONGEST_LINE` its beginning."""
    line, num_bytes = bytearray(), 0
    async for chunk in response.content.iter_any():
        for number, piece in enumerate(chunk.split(b"\n")):
            if number:
                yield _shown(line, num_bytes)
                line, num_bytes = bytearray(), 0
            line += piece[: _LONGEST_LINE - num_bytes] if num_bytes < _LONGEST_LINE else b""
            num_bytes += len(piece)
    if line:
        yield _shown(line, num_bytes)


def _shown(line: bytearray, num_bytes: int) -> bytes:
    """:param num_bytes: of all of the line"""
    cut = num_bytes - len(line)
    return bytes(line) + (f" ... ({cut:,} more bytes)".encode() if cut else b"")


def _say_rarely(state: tenacity.RetryCallState) -> None:
    """Say that the server is away: the first time, and then once in a quarter of an hour."""
    before = state.idle_for - state.upcoming_sleep
    if state.attempt_number == 1 or state.idle_for // _SAY_SECONDS != before // _SAY_SECONDS:
        waited = f", for {state.idle_for:.0f} s by now" if state.attempt_number > 1 else ""
        error = state.outcome.exception() if state.outcome else None
        logger.warning("waiting for the Kubernetes API%s: %s", waited, error)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, UnreachableError) or (isinstance(error, ApiError) and error.may_pass)


def _crossed(error: BaseException) -> bool:
    """Whether other requests changed the namespace's quota while it was reckoned for the object that was to be made."""
    return isinstance(error, ApiError) and error.status == 409 and error.reason == "Conflict"
