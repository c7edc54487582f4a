"""Which of a machine's network interfaces the ranks talk by."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping

import psutil


def choose_interface() -> None:
    """
    Let gloo and NCCL use the interface by which this node reaches the first one, where nobody has chosen another.

    Gloo takes the address of the host's name, which may be that of a network the others cannot reach, or of none. NCCL
    takes the first interface that is up.
    """
    name = interface_of(own_address(), _interfaces())
    if name is None:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # exactly this one: eth1 would be eth10 too


def own_address() -> str | None:
    """
    The address by which this node reaches the first one; None where there is no way, or where it says nothing.

    It says nothing on the first of several nodes whose name is its own loopback address, as in Debian's /etc/hosts.
    """
    master = os.environ.get("MASTER_ADDR")
    address = _address_towards(master) if master else None
    several_nodes = os.environ.get("GROUP_WORLD_SIZE", "1") != "1"
    return None if several_nodes and not _is_loopback(master) and _is_loopback(address) else address


def interface_of(address: str | None, interfaces: Mapping[str, Iterable[str]]) -> str | None:
    """
    The interface that has the address.

    :param interfaces: addresses by name; those of IPv6 may end in ``%`` and a zone
    """
    for name, addresses in interfaces.items():
        if any(each.partition("%")[0] == address for each in addresses):
            return name
    return None


def _interfaces() -> dict[str, list[str]]:
    return {name: [each.address for each in all_] for name, all_ in psutil.net_if_addrs().items()}


def _address_towards(host: str) -> str | None:
    """This machine's address on the way to a host; None where there is no way. Nothing is sent."""
    try:
        [(family, kind, _, _, address), *_] = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
