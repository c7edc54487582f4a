"""The client, before a server that fails as networks, proxies and servers that are started anew do."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import re
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mlops.client import (
    AsyncClient,
    Client,
    ClientError,
    RefusedError,
    UnreachableError,
    Value,
    following,
    session,
)
from mlops.contract.rest import SnapshotSummary

API = "/mlops/api/v1"
RUN = {
    "id": "events.experiments@one", "kind": "experiment", "pipeline": "events", "state": "running", "user": "ana",
    "asked": {}, "queued_at": None, "started_at": None, "ended_at": None, "note": None,
    "airflow": "/dags/events.experiments/runs/one", "tasks": [], "steps": [], "result": None, "failure": None,
}  # fmt: skip


class Asked(BaseHTTPRequestHandler):
    """A request, to be answered by the test."""

    server: Server

    def handle_any(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(self)
        if self.path == "/auth/token" and self.server.login is not None:
            self.server.login(self)
        else:
            self.server.answer(self)

    def say(self, status: int, document: Any, media_type: str = "application/json") -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def problem(self, status: int, detail: str) -> None:
        self.say(status, {"title": "", "status": status, "detail": detail}, "application/problem+json")

    def redirect(self, address: str) -> None:
        self.send_response(302)
        self.send_header("Location", address)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def cut(self) -> None:
        """End the connection as a server does that is killed."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = handle_any

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.asked: list[Asked] = []
        self.login: Callable[[Asked], None] | None = lambda asked: asked.say(201, {"access_token": "token"})
        self.answer: Callable[[Asked], None] = lambda asked: asked.say(200, RUN)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # connections that a test has cut

    @property
    def paths(self) -> list[str]:
        return [f"{asked.command} {urlsplit(asked.path).path}" for asked in self.asked]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


class Awaited:
    """An :class:`AsyncClient`, as a test asks it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(*args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._loop.run_until_complete(_all(getattr(self._client, name)(*args, **kwargs)))


async def _all(found: Awaitable[Any] | AsyncIterator[Any]) -> Any:
    return [each async for each in found] if isinstance(found, AsyncIterator) else await found


@pytest.fixture(params=[Client, Awaited])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(following, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(following, "REOPEN_SECONDS", 0.01)
    monkeypatch.setattr(session, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(following, "FIRST_LOOK_SECONDS", 0.01)
    return request.param


def failing(times: int, fails: Callable[[Asked], None], then: Callable[[Asked], None]) -> Callable[[Asked], None]:
    left = iter(range(times))
    return lambda asked: fails(asked) if next(left, None) is not None else then(asked)


@pytest.mark.parametrize(
    "fails", [Asked.cut, lambda asked: asked.say(503, b"<html>starting</html>", "text/html")], ids=["cut", "proxy"]
)
def test_a_request_whose_answer_is_lost_is_sent_again_and_counts_once(
    server: Server, kind: Any, fails: Callable[[Asked], None]
) -> None:
    """Broken: a lost answer would train twice."""
    server.answer = failing(3, fails, lambda asked: asked.say(201, RUN))
    run = kind(server.url).submit("events", settings={"train.epochs": 1}, as_of="2024-01-10")
    assert run.airflow == f"{server.url}/dags/events.experiments/runs/one"
    posted = [asked for asked in server.asked if asked.path == f"{API}/runs"]
    assert len(posted) == 4
    assert len({asked.headers["Idempotency-Key"] for asked in posted}) == 1
    body = {"pipeline": "events", "settings": {"train.epochs": 1}, "as_of": "2024-01-10"}
    assert [json.loads(asked.body) for asked in posted] == [body] * 4


def test_how_pipelines_stand_is_told_with_whole_addresses(server: Server, kind: Any) -> None:
    """Broken: who reads it in a notebook or a chat could not click on it."""
    form = "/dags/events/runs/x/tasks/approve/required_actions"
    asked = {"subject": "Put 3 in?", "approvers": ["vera"], "address": form}
    common = {"standing": "asked", "said": "Put 3 in?", "since": None, "airflow": "/dags/events/runs/x"}
    pipeline = {
        "name": "events", "run": "events@x", "questions": [asked], "is_paused": False, "next_run": None,
        "trainings": [],
    }  # fmt: skip
    judged = {
        "interval": ["2024-01-01T00:00:00Z", "2024-01-10T00:00:00Z"], "passed": True, "reason": "better",
        "report": "/mlops/reports/r.html",
    } | dict.fromkeys(
        ("metric", "value", "champion", "champion_value", "difference", "difference_low", "difference_high")
    )  # fmt: skip
    night = {"run": "events@x", "due_at": "2024-01-10T00:00:00Z", "begun_at": None, "judged": judged}
    server.answer = lambda asked: asked.say(200, {"pipelines": [common | pipeline], "problem": ""})
    client = kind(server.url)
    (told,) = client.tonight()
    assert (told.airflow, told.questions[0].address) == (f"{server.url}/dags/events/runs/x", f"{server.url}{form}")
    progress = {
        "run": "7", "name": "events 2026-01-10", "step": 3, "num_steps": 9, "loss": 0.5, "seconds_left": 6.0,
        "goodput": 1.0, "told_at": "2026-01-10T00:00:00Z",
    }  # fmt: skip
    server.answer = lambda asked: asked.say(200, {"trainings": [progress]})
    (training,) = client.progress("events@x")
    assert (training.step, training.seconds_left) == (3, 6.0)
    assert server.asked[-1].path == f"{API}/runs/events@x/progress"
    nights = [common | night, common | night | {"judged": None}]
    server.answer = lambda asked: asked.say(200, {"nights": nights})
    first, second = client.nights("events", most=2)
    assert first.judged.report == f"{server.url}/mlops/reports/r.html"
    assert (first.airflow, second.judged) == (f"{server.url}/dags/events/runs/x", None)
    assert server.asked[-1].path == f"{API}/nights?pipeline=events&limit=2"


def test_each_call_is_a_run_of_its_own(server: Server, kind: Any) -> None:
    client = kind(server.url)
    for _ in range(2):
        client.submit("events")
    client.submit("events", idempotency_key="mine")
    keys = [asked.headers["Idempotency-Key"] for asked in server.asked if asked.command == "POST"]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_releases_are_asked_for_with_whole_addresses(server: Server, kind: Any) -> None:
    """Broken: an answer that is lost would take two champions back; an address would lead nowhere from a notebook."""
    started = {**RUN, "kind": "rollback", "pipeline": None, "waits_for": None}
    server.answer = failing(1, Asked.cut, lambda asked: asked.say(202, started))
    client = kind(server.url)
    assert client.rollback("events", "complaints", champion=7).airflow.startswith(f"{server.url}/dags/")
    client.register("events", client.rollback("events", "late"), training="k")
    way = {
        "model": "events", "version": "3", "stage": "staging", "wanted": "production", "is_done": False,
        "waits_for": "an answer", "question": "/dags/events/runs/x/tasks/approve/required_actions",
        "approvers": ["vera"], "run": "events@x", "airflow": "/dags/events/runs/x",
    }  # fmt: skip
    server.answer = lambda asked: asked.say(202, way)
    assert client.ask_stage("events", 3).question == f"{server.url}{way['question']}"
    server.answer = lambda asked: asked.say(200, {**way, "question": None, "airflow": None})
    assert client.ask_stage("events", "champion").airflow is None
    posted = [asked for asked in server.asked if asked.path.startswith(API)]
    assert [(asked.command, asked.path.removeprefix(API), json.loads(asked.body)) for asked in posted] == [
        *2 * [("POST", "/models/events/rollback", {"why": "complaints", "champion": "7"})],
        ("POST", "/models/events/rollback", {"why": "late", "champion": None}),
        ("POST", "/models/events/versions", {"run": RUN["id"], "training": "k"}),
        ("PUT", "/models/events/versions/3/stage", {"stage": "production"}),
        ("PUT", "/models/events/versions/champion/stage", {"stage": "production"}),
    ]
    keys = [asked.headers["Idempotency-Key"] for asked in posted[:3]]
    assert keys[0] == keys[1] != keys[2]


def test_what_ends_a_run_is_asked_once(server: Server, kind: Any) -> None:
    """Broken: it would be told that the run has ended already, as failed."""
    server.answer = lambda asked: asked.cut()
    with pytest.raises(UnreachableError, match=f"Airflow at {server.url} cannot be reached"):
        kind(server.url).cancel("events.experiments@one")
    assert server.paths.count(f"DELETE {API}/runs/events.experiments@one") == 1


def test_where_nothing_answers_it_says_so(kind: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UnreachableError, match=f"http://127.0.0.1:{port} cannot be reached: "):
        kind(f"http://127.0.0.1:{port}").runs()


def test_who_is_logged_out_logs_in_again(server: Server, kind: Any) -> None:
    """Broken: a notebook that is open for days would have to be started again."""
    valid = {"Bearer token"}

    def answer(asked: Asked) -> None:
        if asked.headers["Authorization"] in valid:
            asked.say(200, RUN)
        else:
            asked.problem(401, "the token has expired")

    server.answer = answer
    client = kind(server.url, "ana", "the-password")
    assert client.run("events.experiments@one").state == "running"
    server.login = lambda asked: asked.say(201, {"access_token": "new"})
    valid = {"Bearer new"}
    assert client.run("events.experiments@one").state == "running"
    logins = [asked for asked in server.asked if asked.path == "/auth/token"]
    assert [json.loads(asked.body) for asked in logins] == [{"username": "ana", "password": "the-password"}] * 2
    valid = set()
    with pytest.raises(RefusedError, match="the token has expired"):
        client.run("events.experiments@one")


def test_who_is_not_let_in_is_told_what_to_give(server: Server, kind: Any) -> None:
    server.login = lambda asked: asked.say(401, {"detail": "Invalid credentials"})
    with pytest.raises(RefusedError, match=r"does not let 'ana' in with this password: .*Invalid credentials"):
        kind(server.url, "ana", "wrong").runs()
    with pytest.raises(RefusedError, match="asks who you are: give user and password, or a token"):
        kind(server.url).runs()
    server.answer = lambda asked: asked.problem(401, "Invalid token")
    with pytest.raises(RefusedError, match="Invalid token") as refused:
        kind(server.url, token="old").runs()
    assert refused.value.status == 401
    assert server.paths[-1] == f"GET {API}/runs", "a token that somebody gave is not replaced"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("127.0.0.1:8080",), "Airflow's address '127.0.0.1:8080': write it as your browser shows it"),
        (("http://h", "ana"), "give both user and password"),
        (("http://h", None, "secret"), "give both user and password"),
        (("http://h", "ana", "secret", "token"), "leave user and password out"),
    ],
)
def test_who_one_is_is_said_in_one_way(kind: Any, given: tuple[str, ...], message: str) -> None:
    with pytest.raises(ClientError, match=message):
        kind(*given[:3], token=given[3] if len(given) == 4 else None)


def test_another_server_is_told_apart(server: Server, kind: Any) -> None:
    page = b"<!doctype html><title>Airflow</title>"
    server.answer = lambda asked: asked.say(200, page, "text/html")
    with pytest.raises(ClientError, match=r"is it an Airflow with this provider.*It began '<!doctype html>"):
        kind(server.url).runs()
    server.answer = lambda asked: asked.say(404, b"<html>nothing here</html>", "text/html")
    with pytest.raises(RefusedError, match=f"GET {server.url}{API}/runs.* answered 404: <html>nothing here"):
        kind(server.url).runs()
    for status in (404, 401):  # as MLflow asks who one is
        server.login = lambda asked, status=status: asked.say(status, b"no", "text/plain")
        with pytest.raises(ClientError, match="gives no token: is http://127.0.0.1:[0-9]+ the address of an Airflow"):
            kind(server.url).runs()


def test_a_newer_server_is_understood_and_an_older_one_named(server: Server, kind: Any) -> None:
    server.answer = lambda asked: asked.say(200, {**RUN, "colour": "blue"})
    assert kind(server.url).run("events.experiments@one").id == RUN["id"]
    server.answer = lambda asked: asked.say(200, {key: value for key, value in RUN.items() if key != "steps"})
    with pytest.raises(ClientError, match=r"no Run of this client \(steps: Field required\)"):
        kind(server.url).run("events.experiments@one")


def test_runs_are_listed_over_pages(server: Server, kind: Any) -> None:
    def answer(asked: Asked) -> None:
        number = int(asked.path.partition("cursor=")[2].partition("&")[0] or 0)
        runs = [{**RUN, "id": f"events.experiments@{number}"}] * (2 if number != 1 else 0)
        asked.say(200, {"runs": runs, "next": str(number + 1) if number < 4 else None})

    server.answer = answer
    client = kind(server.url)
    assert len(client.runs("events", state="running")) == 8, "a page may be empty"
    assert len(client.runs("events", most=3)) == 3
    assert client.runs("events", most=0) == []
    assert [each.id for each in client.runs("events", most=3)] == ["events.experiments@0"] * 2 + [
        "events.experiments@2"
    ]
    assert "pipeline=events&kind=experiment&state=running" in server.asked[1].path


def test_waiting_ends_with_the_run_or_in_time(server: Server, kind: Any) -> None:
    states = iter(["queued", "running", "running"])
    server.answer = lambda asked: asked.say(200, {**RUN, "state": next(states, "success")})
    client = kind(server.url)
    assert client.wait("events.experiments@one").state == "success"
    server.answer = lambda asked: asked.say(200, RUN)
    with pytest.raises(TimeoutError, match="events.experiments@one has not ended yet; it goes on in Airflow"):
        client.wait("events.experiments@one", timeout_seconds=0.05)


def test_waiting_ends_in_time_where_nothing_answers(server: Server, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a program that waits for a minute would be held for 25 by a server that hangs."""
    monkeypatch.setattr(following, "LAST_LOOK_SECONDS", 0.2)
    client = kind(server.url)
    client.run(RUN["id"])
    hangs = threading.Event()
    server.answer = lambda asked: None if hangs.wait(3.0) else asked.cut()
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="has not ended yet"):
        client.wait(RUN["id"], timeout_seconds=0.3)
    assert time.monotonic() < begun + 3.0
    hangs.set()


def value(number: int) -> dict[str, Any]:
    return {"run": "r", "name": "train", "metric": "loss", "step": number, "value": number / 2, "at": number}


def event(kind: str, data: object, event_id: str | None = None) -> bytes:
    mark = "" if event_id is None else f"id: {event_id}\n"
    return f"event: {kind}\ndata: {json.dumps(data)}\n{mark}\n".encode()


class Stream:
    """Streams values by batches, and is cut anywhere; it goes on after the last id, as the product's does."""

    def __init__(self, values: int, seed: int) -> None:
        self.values, self.chance, self.ids = values, random.Random(seed), [""]
        self.was_open = False

    def __call__(self, asked: Asked) -> None:
        given = asked.headers.get("Last-Event-ID", "")
        assert given in self.ids, "an id that was sent"
        how = self.chance.random() if self.was_open else 1.0
        self.was_open = True
        if how < 0.1:
            asked.cut()
            return
        if how < 0.2:
            asked.say(502, {"title": "", "status": 502, "detail": "MLflow is away"}, "application/problem+json")
            return
        asked.send_response(200)
        asked.send_header("Content-Type", "text/event-stream; charset=utf-8")
        asked.end_headers()
        at = int(given or 0)
        while at < self.values:
            batch = min(self.chance.randint(1, 4), self.values - at)
            sent = b""
            for number in range(at + 1, at + batch + 1):
                last = str(number) if number == at + batch else None
                self.ids += [last] if last else []
                sent += event("value", value(number), last)
            at += batch
            if self.chance.random() < 0.3:
                asked.wfile.write(sent[: self.chance.randrange(len(sent))])
                asked.cut()
                return
            asked.wfile.write(sent + b": ping\n\n")
            if self.chance.random() < 0.1:  # as after some seconds
                asked.close_connection = True
                return
        asked.wfile.write(event("end", {"state": "success"}))
        asked.close_connection = True


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_that_is_cut_anywhere_tells_each_value_once(server: Server, kind: Any, seed: int) -> None:
    """Broken: a curve would have holes, or points twice."""
    server.answer = Stream(40, seed)
    told = list(kind(server.url).watch("events.experiments@one"))
    assert all(told), "no empty batches"
    assert [each for batch in told for each in batch] == [Value(**value(number)) for number in range(1, 41)]


def test_what_the_server_says_ends_the_stream(server: Server, kind: Any) -> None:
    def answer(asked: Asked) -> None:
        asked.say(200, event("problem", {"detail": "more than 200000 values"}), "text/event-stream")

    server.answer = answer
    with pytest.raises(ClientError, match="more than 200000 values"):
        list(kind(server.url).watch("events.experiments@one"))
    for answer in (
        lambda asked: asked.say(200, b"<html>please log in</html>", "text/html"),
        lambda asked: asked.redirect("https://login.example"),
    ):
        server.answer = answer
        with pytest.raises(ClientError, match=r"no stream of events, but '<html>please|is at https://login.example"):
            list(kind(server.url).watch("events.experiments@one"))
    server.answer = lambda asked: asked.problem(404, "there is no run 'x'")
    with pytest.raises(RefusedError, match="there is no run 'x'"):
        list(kind(server.url).watch("x"))


def test_patience_with_a_stream_ends(server: Server, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: whoever follows a run would never hear that nothing comes any more."""
    monkeypatch.setattr(following, "PATIENCE_SECONDS", 0.3)
    away = event("away", {"detail": "MLflow cannot be reached"})
    server.answer = lambda asked: asked.say(200, away, "text/event-stream")
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="MLflow cannot be reached"):
        list(kind(server.url).watch("events.experiments@one"))
    assert 0.3 < time.monotonic() - began < 30
    opened = len(server.asked)
    assert opened < 60, "it pauses in between"
    server.answer = lambda asked: asked.problem(502, "MLflow cannot be reached")
    with pytest.raises(RefusedError, match="MLflow cannot be reached"):
        list(kind(server.url).watch("events.experiments@one"))
    assert len(server.asked) <= opened + 2, "a stream that was never open is not waited for"


def test_many_curves_come_though_no_id_can_tell_of_them(server: Server, kind: Any) -> None:
    """Broken: a search of hundreds of trials would show nothing until it has ended."""
    sent = [value(number) for number in range(1, 501)]
    left = iter([sent[:450], sent])

    def answer(asked: Asked) -> None:
        batch = next(left)
        end = event("end", {"state": "success"}) if batch is sent else b""
        asked.say(200, b"".join(event("value", each) for each in batch) + end, "text/event-stream")

    server.answer = answer
    told = list(kind(server.url).watch("events.experiments@one"))
    assert [len(batch) for batch in told] == [200, 200, 50, 50]
    assert [each.step for batch in told for each in batch] == [each["step"] for each in sent]


def test_waiting_outlives_a_server_that_is_started_anew(server: Server, kind: Any) -> None:
    """Broken: after hours of waiting a restart of ten seconds would end it."""
    done = {**RUN, "state": "success"}
    then = failing(12, lambda asked: asked.say(503, b"", "text/html"), lambda asked: asked.say(200, done))
    server.answer = failing(1, lambda asked: asked.say(200, RUN), then)
    assert kind(server.url).wait("events.experiments@one").state == "success"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"train.learning_rate": float("nan")}, "train.learning_rate=nan: Out of range"),
        ({"train.model_args.at": Path("/x")}, "train.model_args.at=PosixPath('/x'): Object of type PosixPath"),
        ({"train.epochs": {1, 2}}, "train.epochs={1, 2}: Object of type set"),
        (["tune=null"], "settings=['tune=null']: give them by their names, such as {\"train.epochs\": 6}"),
    ],
)
def test_what_json_cannot_hold_is_named(server: Server, kind: Any, settings: Any, named: str) -> None:
    with pytest.raises(ClientError, match=re.escape(named)):
        kind(server.url).submit("events", settings=settings)
    with pytest.raises(ClientError, match="idempotency_key: give printable characters of ASCII"):
        kind(server.url).submit("events", idempotency_key="prüfung")
    with pytest.raises(ClientError, match="hours=inf: Out of range"):
        kind(server.url).change_budget("events.experiments@one", hours=float("inf"))
    with pytest.raises(ClientError, match=re.escape("training=PosixPath('/x'): Object of type PosixPath")):
        kind(server.url).register("events", "events.experiments@one", training=Path("/x"))
    assert not server.asked


def test_waiting_ends_in_time_though_the_server_fails(server: Server, kind: Any) -> None:
    """Broken: it would be asked without a pause, for minutes."""
    server.answer = failing(1, lambda asked: asked.say(200, RUN), lambda asked: asked.say(500, b"", "text/html"))
    with pytest.raises(TimeoutError):
        kind(server.url).wait("events.experiments@one", timeout_seconds=0.3)
    assert len(server.asked) < 20


@pytest.mark.parametrize(
    "url", ["http://localhost:port", "http://[::1", "http://a\nb", "ftp://host", "http:///x", "host"]
)
def test_an_address_that_is_none_is_told_at_once(kind: Any, url: str) -> None:
    with pytest.raises(ClientError, match="write it as your browser shows it"):
        kind(url)


def test_a_damaged_answer_is_no_traceback_of_a_library(server: Server, kind: Any) -> None:
    def mangled(asked: Asked) -> None:
        asked.send_response(200)
        asked.send_header("Content-Encoding", "gzip")
        asked.send_header("Content-Length", "4")
        asked.end_headers()
        asked.wfile.write(b"none")

    server.answer = mangled
    with pytest.raises(ClientError, match="cannot be reached: "):
        kind(server.url).runs()
    server.answer = lambda asked: asked.say(200, event("value", {"step": "x"}), "text/event-stream")
    with pytest.raises(ClientError, match="which is no value of this client"):
        list(kind(server.url).watch("a@b"))


def test_a_date_may_be_one(server: Server, kind: Any) -> None:
    kind(server.url).submit("events", as_of=date(2024, 1, 10))
    assert json.loads(server.asked[-1].body)["as_of"] == "2024-01-10"


def test_a_snapshot_is_given_by_itself(server: Server, kind: Any) -> None:
    """Broken: what the client has just listed must be taken apart before it can be asked about."""
    snapshot = SnapshotSummary.model_construct(version="c2a8db8ed9f8")
    client = kind(server.url)
    client.submit("events", dataset=snapshot)
    client.search("events", {"epochs": {"choices": [1, 2]}}, dataset=snapshot)
    assert [json.loads(asked.body)["dataset"] for asked in server.asked if asked.body] == ["c2a8db8ed9f8"] * 2


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda client: client.run(5), "5 is no run: give one, or its id DAG@RUN"),
        (lambda client: client.study(None), "None is no run: give one, or its id DAG@RUN"),
        (lambda client: client.snapshot("events", 7), "7 is no snapshot: give one, as snapshots() lists them"),
    ],
)
def test_what_is_no_run_is_named(kind: Any, ask: Callable[[Any], Any], named: str) -> None:
    with pytest.raises(ClientError, match=re.escape(named)):
        ask(kind("http://127.0.0.1:9"))


def test_one_metric_may_be_given_alone(server: Server, kind: Any) -> None:
    server.answer = lambda asked: asked.say(200, {"curves": []})
    kind(server.url).curves("events.experiments@one", metrics="loss")
    assert server.asked[-1].path.endswith("/metrics?metric=loss")


def test_a_server_that_has_moved_is_named(server: Server, kind: Any) -> None:
    server.answer = lambda asked: asked.redirect("https://airflow.example/mlops")
    client = kind(server.url)
    for ask in (client.runs, lambda: client.logs("a@b"), lambda: client.run("a@b")):
        with pytest.raises(RefusedError, match="is at https://airflow.example/mlops now: give the address"):
            ask()
    server.answer = lambda asked: asked.say(200, b"<html>please log in</html>", "text/html")
    with pytest.raises(ClientError, match="no log of this client"):
        client.logs("a@b")
    server.login = lambda asked: asked.redirect("https://airflow.example/auth")
    with pytest.raises(ClientError, match="is at https://airflow.example/auth now"):
        kind(server.url, "ana", "secret").runs()
    server.login = lambda asked: asked.say(500, b"boom", "text/plain")
    with pytest.raises(RefusedError, match="auth/token answered 500: boom"):
        kind(server.url, "ana", "secret").runs()


def test_secrets_stay_out_of_messages(kind: Any) -> None:
    with pytest.raises(ClientError) as refused:
        kind("http://ana:secret@airflow.example")
    assert "secret" not in str(refused.value)
    with pytest.raises(ClientError) as refused:
        kind("http://airflow.example", token="sec\nret")
    assert str(refused.value) == "token: give printable characters of ASCII"


def test_a_token_out_of_a_file_may_end_its_line(server: Server, kind: Any) -> None:
    kind(f" {server.url}/\n", token="token\n").run("a@b")
    headers = server.asked[-1].headers
    assert (headers["Authorization"], headers["User-Agent"]) == ("Bearer token", "mlops-client")
    assert "gzip" in headers["Accept-Encoding"]


def test_a_proxys_problem_need_not_say_what_it_is(server: Server, kind: Any) -> None:
    server.answer = failing(
        2, lambda asked: asked.say(503, {"status": 503}, "application/problem+json"), lambda asked: asked.say(200, RUN)
    )
    assert kind(server.url).run("a@b").id == RUN["id"]


def test_a_refusal_can_be_handed_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(RefusedError(409, "it has ended")))
    assert (again.status, str(again)) == (409, "it has ended")


@pytest.mark.parametrize("run_id", ["events.experiments@a b/c?d#e", "../x@y", "%2F@%3F"])
def test_an_id_is_sent_as_it_is(server: Server, kind: Any, run_id: str) -> None:
    """Broken: another address would be asked."""
    kind(server.url).run(run_id)
    path = server.asked[-1].path
    assert path.startswith(f"{API}/runs/")
    assert path.count("/") == 5
    assert "?" not in path


def test_both_clients_have_the_same_methods() -> None:
    def methods(of: type) -> dict[str, str]:
        import inspect

        return {
            name: str(inspect.signature(method).replace(return_annotation=inspect.Signature.empty))
            for name in dir(of)
            if callable(method := getattr(of, name)) and not name.startswith("_")
        }

    assert methods(Client) == methods(AsyncClient)
