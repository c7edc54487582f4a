"""The API over HTTP: paths and verbs to the store, errors to Status bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from aiohttp import web

from cluster import deletion, errors, patching, pod_logs, schema, watching
from cluster.admission import Admission
from cluster.errors import ApiError
from cluster.garbage import disrupt
from cluster.kubelet import Kubelet
from cluster.objects import RESOURCES, Object, Resource, name_of, uid_of
from cluster.pod_logs import flag, number
from cluster.queues import Queues
from cluster.selection import Test, by_fields, by_labels
from cluster.store import Store

TOKEN = "test"
_COMMON = {"pretty", "fieldManager", "fieldValidation"}
_LIST = {"labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch",
         "timeoutSeconds", "watch", "allowWatchBookmarks", "sendInitialEvents"}  # fmt: skip
_DELETE = {"gracePeriodSeconds", "propagationPolicy", "orphanDependents"}
_LOG = {"container", "follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes"}


@dataclass(frozen=True)
class Target:
    """What a path means."""

    resource: Resource
    namespace: str
    name: str = ""
    part: str = ""


class Server:
    """Answers requests."""

    def __init__(self, store: Store, admission: Admission, kubelet: Kubelet, queues: Queues) -> None:
        self._store, self._admission, self._kubelet, self._queues = store, admission, kubelet, queues
        self.closing = asyncio.Event()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """A mistake of ours in an answer: the cluster stops with it."""

    def application(self) -> web.Application:
        """The application to serve."""
        application = web.Application(client_max_size=3 << 20)
        application.router.add_route("*", "/{path:.*}", self._answer)
        return application

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._dispatch(request)
        except ApiError as error:
            return web.json_response(error.status(), status=error.code)
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            raise

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if path == "/version":
            version = {"major": "1", "minor": "34", "gitVersion": "v1.34.0", "platform": "linux/amd64"}
            version |= dict.fromkeys(("gitCommit", "gitTreeState", "goVersion", "compiler"), "stand-in")
            version["buildDate"] = "2025-08-27T00:00:00Z"
            return web.json_response(version)
        if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" and request.method == "POST":
            return web.json_response(schema.parse(await request.read()) | {"status": {"allowed": True}}, status=201)
        if request.method == "GET" and (summary := self._queues.summary(path)) is not None:
            _query(request, {"limit", "offset"})
            return web.json_response(summary)
        target = _target(path)
        if target.part:
            return await self._answer_part(request, target)
        match request.method, bool(target.name):
            case "GET", True:
                _query(request, _COMMON | {"resourceVersion"})
                return web.json_response(self._get(target))
            case "GET", False:
                return await self._list(request, target)
            case "POST", False:
                _query(request, _COMMON)
                body = schema.parse(await _json(request))
                return web.json_response(self._admission.create(target.resource, body, target.namespace), status=201)
            case "PUT", True:
                _query(request, _COMMON)
                body = schema.parse(await _json(request))
                return web.json_response(self._admission.update(target.resource, self._get(target), body))
            case "PATCH", True:
                return await self._patch(request, target)
            case "DELETE", True:
                return await self._delete(request, target)
            case "DELETE", False:
                return await self._delete_all(request, target)
            case _:
                text = "the server does not allow this method on the requested resource"
                raise ApiError(405, "MethodNotAllowed", text)

    def _get(self, target: Target) -> Object:
        return self._store.get(target.resource.plural, target.namespace, target.name)

    async def _list(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = _query(request, _COMMON | _LIST)
        selected = _selection(query, target)
        if flag(query, "sendInitialEvents"):
            raise errors.unsupported("sendInitialEvents")
        seconds = number(query, "timeoutSeconds") if "timeoutSeconds" in query else None
        version = number(query, "resourceVersion") if query.get("resourceVersion") else 0
        if flag(query, "watch"):
            if version > self._store.version:
                text = f"Too large resource version: {version}, current: {self._store.version}"
                raise ApiError(504, "Timeout", text)
            watch = watching.Watch(
                target.resource, target.namespace, selected, version or None,
                seconds or None, flag(query, "allowWatchBookmarks"),
            )  # fmt: skip
            lines = watching.events(self._store, watch, self.closing)
            return await _stream(request, lines, "application/json")
        found = [each for each in self._store.all(target.resource.plural, target.namespace) if selected(each)]
        if query.get("continue") or 0 < number({"limit": query.get("limit", "0")}, "limit") < len(found):
            raise errors.unsupported("lists in parts (limit, continue)")
        items = [{key: value for key, value in each.items() if key not in ("kind", "apiVersion")} for each in found]
        head = {"kind": f"{target.resource.kind}List", "apiVersion": target.resource.api_version}
        metadata = {"resourceVersion": str(self._store.version)}
        return web.json_response(head | {"metadata": metadata, "items": items})

    async def _patch(self, request: web.Request, target: Target, *, status: bool = False) -> web.Response:
        _query(request, _COMMON | {"force"})
        old = self._get(target)
        new = patching.patched(old, schema.parse_patch(await request.read()), request.content_type)
        return web.json_response(self._admission.update(target.resource, old, new, status=status))

    async def _delete(self, request: web.Request, target: Target) -> web.Response:
        options = await _delete_options(request)
        value = self._get(target)
        result = deletion.delete(self._store, target.resource, value, options)
        if target.resource.kind == "Pod" or self._store.current(target.resource.plural, value) is not None:
            return web.json_response(result)
        return web.json_response(_success(target.resource, value))

    async def _delete_all(self, request: web.Request, target: Target) -> web.Response:
        if not target.namespace:
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        query = _query(request, _COMMON | _LIST | _DELETE)
        options = await _delete_options(request, _LIST)
        selected = _selection(query, target)
        found = [each for each in self._store.all(target.resource.plural, target.namespace) if selected(each)]
        for each in found:
            deletion.delete(self._store, target.resource, each, options)
        head = {"kind": f"{target.resource.kind}List", "apiVersion": target.resource.api_version}
        return web.json_response(head | {"metadata": {"resourceVersion": str(self._store.version)}, "items": found})

    async def _answer_part(self, request: web.Request, target: Target) -> web.StreamResponse:
        match request.method, target.part, target.resource.kind:
            case "GET", "log", "Pod":
                question = pod_logs.Question.read(_query(request, _COMMON | _LOG))
                lines = pod_logs.lines(self._get(target), self._kubelet, question)
                return await _stream(request, lines, "text/plain")
            case "GET", "status", "Pod" | "Job" | "Node":
                return web.json_response(self._get(target))
            case "PATCH", "status", "Pod" | "Job" | "Node":
                return await self._patch(request, target, status=True)
            case "PUT", "status", "Pod" | "Job" | "Node":
                body = schema.parse(await _json(request))
                return web.json_response(self._admission.update(target.resource, self._get(target), body, status=True))
            case "POST", "eviction", "Pod":
                return await self._evict(request, target)
            case _:
                raise errors.unsupported(f"{request.method} of {target.resource.plural}/{target.part}")

    async def _evict(self, request: web.Request, target: Target) -> web.Response:
        body = schema.parse(await _json(request))
        schema.check(body, "Eviction", "policy/v1")
        pod = self._get(target)
        if body["metadata"]["name"] != target.name:
            raise errors.bad_request("name in URL does not match name in Eviction object")
        disrupt(self._store, pod, "EvictionByEvictionAPI", "Eviction API: evicting", body.get("deleteOptions", {}))
        return web.json_response(_success(target.resource, pod), status=201)


def _target(path: str) -> Target:
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        version, rest = "v1", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        version, rest = "/".join(parts[1:3]), parts[3:]
    else:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource = RESOURCES.get(rest[0]) if rest else None
    if resource is None or resource.api_version != version or len(rest) > 3:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    if resource.namespaced != bool(namespace) and (namespace or len(rest) > 1):
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    return Target(resource, namespace, *rest[1:])


def _query(request: web.Request, known: set[str]) -> dict[str, str]:
    query = dict(request.query)
    if unknown := set(query) - known:
        raise errors.unsupported(f"the query parameters {sorted(unknown)}")
    return query


def _selection(query: dict[str, str], target: Target) -> Test:
    labels = by_labels(query.get("labelSelector", ""))
    fields = by_fields(query.get("fieldSelector", ""), target.resource.plural)
    return lambda value: labels(value) and fields(value)


async def _json(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        text = "the body of the request was in an unknown format - accepted media types include: application/json"
        raise ApiError(415, "UnsupportedMediaType", text)
    return await request.read()


async def _delete_options(request: web.Request, more: set[str] | None = None) -> Object:
    query = _query(request, _COMMON | _DELETE | (more or set()))
    body = await request.read()
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if body and body != b"null":
        options |= schema.parse(body)
    if "gracePeriodSeconds" in query:
        options.setdefault("gracePeriodSeconds", number(query, "gracePeriodSeconds"))
    if "propagationPolicy" in query:
        options.setdefault("propagationPolicy", query["propagationPolicy"])
    if "orphanDependents" in query:
        options.setdefault("orphanDependents", flag(query, "orphanDependents"))
    schema.check(options, "DeleteOptions", "v1")
    if options.get("dryRun") or "ignoreStoreReadErrorWithClusterBreakingPotential" in options:
        raise errors.unsupported("dryRun")
    return options


async def _stream(request: web.Request, parts: AsyncGenerator[bytes, None], content_type: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": content_type})
    try:
        await response.prepare(request)
        async with aclosing(parts):
            async for part in parts:
                await response.write(part)
        await response.write_eof()
    except ConnectionError:
        pass  # the client went away
    return response


def _success(resource: Resource, value: Object) -> Object:
    details: Object = {"name": name_of(value), "kind": resource.plural, "uid": uid_of(value)}
    if resource.group:
        details["group"] = resource.group
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
