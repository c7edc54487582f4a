"""Which interface gloo and NCCL are told to use."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import psutil
import pytest
from torch import distributed

from mlops.trainer.memory.neighbour import Neighbour
from mlops.trainer.memory.seats import Note
from mlops.trainer.network import choose_interface, interface_of, own_address

INTERFACES = {"lo": ["127.0.0.1", "::1"], "eth1": ["10.0.0.5", "fe80::1%eth1"], "eth10": ["10.1.0.5"]}


@pytest.fixture(autouse=True)
def _no_choice_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MASTER_ADDR", "GROUP_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("address", "name"),
    [("10.0.0.5", "eth1"), ("10.1.0.5", "eth10"), ("fe80::1", "eth1"), ("127.0.0.1", "lo"), ("10.0.0.6", None)],
)
def test_the_interface_is_that_of_the_address(address: str, name: str | None) -> None:
    """Broken: ranks in a pod or on a machine of several networks would wait for each other where no one listens."""
    assert interface_of(address, INTERFACES) == name


def test_on_one_machine_it_is_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a machine without a network could not train."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    choose_interface()
    name = os.environ["GLOO_SOCKET_IFNAME"]
    assert "127.0.0.1" in [each.address for each in psutil.net_if_addrs()[name]]
    assert os.environ["NCCL_SOCKET_IFNAME"] == f"={name}"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "ib0"}, "ib0"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, None),
        ({}, None),
    ],
    ids=["somebody chose", "no way", "no gang"],
)
def test_a_choice_is_left_alone_and_nothing_guessed(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], told: str | None
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    choose_interface()
    assert os.environ.get("GLOO_SOCKET_IFNAME") == told


def test_a_host_name_that_is_its_own_loopback_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the first of several nodes would listen where only it can reach itself."""

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        import socket

        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.1.1", port))]

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setenv("MASTER_ADDR", "node-0")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert own_address() is None
    choose_interface()
    assert "GLOO_SOCKET_IFNAME" not in os.environ


@pytest.mark.parametrize(
    ("master", "own"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("localhost", None)],
    ids=["IPv4", "IPv6", "a name that is its own loopback address"],
)
def test_neighbours_find_each_other_on_any_network(
    monkeypatch: pytest.MonkeyPatch, master: str, own: str | None
) -> None:
    """Broken: trainings of several nodes would not start where nodes have IPv6, or Debian's /etc/hosts."""
    store = distributed.HashStore()
    monkeypatch.setattr("mlops.trainer.memory.neighbour._get_default_store", lambda: store)
    monkeypatch.setattr("mlops.trainer.memory.neighbour._made", repeat(0))
    monkeypatch.setattr("mlops.trainer.memory.neighbour.own_address", lambda: own)
    monkeypatch.setenv("MASTER_ADDR", master)
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(Neighbour, rank=rank, world_size=2, per_node=1, seconds=20) for rank in (0, 1)]
        first, second = (rank.result() for rank in ranks)
    note = Note(3, 0, 7, -5)
    first.send(note)
    deadline = time.monotonic() + 20
    while not (heard := second.receive()):
        assert time.monotonic() < deadline
    assert heard == [note]
    first.close()
    second.close()
