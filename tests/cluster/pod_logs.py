"""A container's log as the API gives it."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cluster.errors import bad_request
from cluster.kubelet import Kubelet
from cluster.objects import Object, name_of, phase_of, seconds_of
from cluster.pod_status import Container
from cluster.sandbox import Log


@dataclass(frozen=True, kw_only=True)
class Question:
    """What of a log is asked for."""

    container: str = ""
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since: float = 0.0
    tail: int | None = None
    limit_bytes: int | None = None

    @classmethod
    def read(cls, query: dict[str, str]) -> Question:
        """
        Read the query string.

        :raises ApiError: it makes no sense
        """
        since = 0.0
        if "sinceSeconds" in query and "sinceTime" in query:
            raise bad_request("at most one of `sinceTime` or `sinceSeconds` may be specified")
        if "sinceSeconds" in query:
            since = time.time() - number(query, "sinceSeconds", 1)
        if "sinceTime" in query:
            try:
                since = seconds_of(query["sinceTime"])
            except ValueError as error:
                raise bad_request(f'sinceTime: parsing time "{query["sinceTime"]}": {error}') from error
        return cls(
            container=query.get("container", ""),
            follow=flag(query, "follow"),
            previous=flag(query, "previous"),
            timestamps=flag(query, "timestamps"),
            since=since,
            tail=number(query, "tailLines", 0) if "tailLines" in query else None,
            limit_bytes=number(query, "limitBytes", 1) if "limitBytes" in query else None,
        )


def flag(query: dict[str, str], name: str) -> bool:
    """A boolean of the query string."""
    return query.get(name, "false").lower() in ("true", "1")


def number(query: dict[str, str], name: str, least: int = 0) -> int:
    """
    A whole number of the query string.

    :raises ApiError: it is none, or too small
    """
    if not re.fullmatch(r"-?\d+", query[name]):
        raise bad_request(f'{name}: strconv.ParseInt: parsing "{query[name]}": invalid syntax')
    if int(query[name]) < least:
        raise bad_request(f"{name}: must be greater than or equal to {least}, got {query[name]}")
    return int(query[name])


def lines(pod: Object, kubelet: Kubelet, question: Question) -> AsyncGenerator[bytes, None]:
    """
    The lines that are asked for; with ``follow`` as they come, until the container ends.

    :raises ApiError: there is no such container, or it has no log yet
    """
    name = _container_name(pod, question.container)
    if "nodeName" not in pod["spec"]:
        raise bad_request(f"pod {name_of(pod)} does not have a host assigned")
    worker = kubelet.worker(pod)
    found = next((each for each in worker.containers if each.name == name), None) if worker is not None else None
    if found is None:
        if phase_of(pod) == "Pending":
            raise _waiting(pod, name, "ContainerCreating")
        raise bad_request(f'container "{name}" in pod "{name_of(pod)}" is terminated and its log is gone')
    if question.previous:
        if found.previous_log is None:
            raise bad_request(f'previous terminated container "{name}" in pod "{name_of(pod)}" not found')
        return _cut(_from_file(found.previous_log, question), question.limit_bytes)
    if found.log is None or ("waiting" in found.state and not found.last_state):
        raise _waiting(pod, name, _reason(found))
    return _cut(_from_log(found.log, question), question.limit_bytes)


def _container_name(pod: Object, asked: str) -> str:
    spec = pod["spec"]
    names = [each["name"] for each in spec["containers"]]
    init = [each["name"] for each in spec.get("initContainers", [])]
    if asked:
        if asked not in [*names, *init]:
            raise bad_request(f"container {asked} is not valid for pod {name_of(pod)}")
        return asked
    if len(names) == 1:
        return str(names[0])
    text = f"a container name must be specified for pod {name_of(pod)}, choose one of: [{' '.join(names)}]"
    raise bad_request(text + (f" or one of the init containers: [{' '.join(init)}]" if init else ""))


def _waiting(pod: Object, container: str, reason: str) -> Exception:
    if reason in ("ErrImagePull", "ImagePullBackOff"):
        reason = "trying and failing to pull image"
    return bad_request(f'container "{container}" in pod "{name_of(pod)}" is waiting to start: {reason}')


def _reason(container: Container) -> str:
    return str(container.state.get("waiting", {}).get("reason", "ContainerCreating"))


async def _from_file(file: Path, question: Question) -> AsyncGenerator[bytes, None]:
    for line in _chosen(file.read_bytes().splitlines(keepends=True), question):
        yield line


async def _from_log(log: Log, question: Question) -> AsyncGenerator[bytes, None]:
    with log.file.open("rb") as file:
        known = file.read().splitlines(keepends=True)
        for line in _chosen(known, question):
            yield line
        while question.follow:
            ended, grown = log.ended, log.grown()
            for line in file.read().splitlines(keepends=True):
                yield _shown(line, question)
            if ended:
                return
            await grown.wait()


def _chosen(known: list[bytes], question: Question) -> list[bytes]:
    if question.since:
        known = [line for line in known if _time(line) >= question.since]
    if question.tail is not None:
        known = known[-question.tail :] if question.tail else []
    return [_shown(line, question) for line in known]


def _shown(line: bytes, question: Question) -> bytes:
    return line if question.timestamps else line.partition(b" ")[2]


def _time(line: bytes) -> float:
    text = line.partition(b" ")[0].decode()
    return datetime.fromisoformat(text[:26] + "+00:00").timestamp()


async def _cut(parts: AsyncGenerator[bytes, None], limit: int | None) -> AsyncGenerator[bytes, None]:
    left = limit
    async for part in parts:
        if left is None:
            yield part
            continue
        yield part[:left]
        left -= len(part)
        if left <= 0:
            return
