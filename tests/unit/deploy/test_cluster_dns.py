"""The test cluster's names: what is asked is what is answered, byte for byte by RFC 1035."""

from __future__ import annotations

import socket
import struct
from types import SimpleNamespace as Thing
from typing import Any

import pytest

from tools.cluster_dns import Directory, answer, names_of

A, AAAA = 1, 28
NAMES = {"redis.prod.svc.cluster.local": ["10.96.0.7"], "ps.prod.svc.cluster.local": []}


def query(name: str, kind: int = A) -> bytes:
    labels = b"".join(bytes([len(p)]) + p.encode() for p in name.split("."))
    return struct.pack(">HHHHHH", 77, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, kind, 1)


def read(reply: bytes) -> tuple[int, list[str]]:
    """(result code, addresses)"""
    identity, flags, _, answers, _, _ = struct.unpack(">HHHHHH", reply[:12])
    assert (identity, flags & 0x8000) == (77, 0x8000)
    addresses = [socket.inet_ntoa(reply[len(reply) - 16 * i - 4 :][:4]) for i in range(answers)]
    return flags & 0xF, addresses[::-1]


@pytest.mark.parametrize(
    ("name", "kind", "code", "addresses"),
    [
        ("redis.prod.svc.cluster.local", A, 0, ["10.96.0.7"]),
        ("Redis.Prod.svc.cluster.local", A, 0, ["10.96.0.7"]),
        ("redis.prod.svc.cluster.local", AAAA, 0, []),
        ("ps.prod.svc.cluster.local", A, 0, []),
        ("nobody.prod.svc.cluster.local", A, 3, []),
        ("example.com", A, 5, []),
    ],
)
def test_a_name_gets_its_addresses(name: str, kind: int, code: int, addresses: list[str]) -> None:
    reply = answer(query(name, kind), NAMES)
    assert read(reply) == (code, addresses)
    assert query(name, kind)[12:] in reply  # the question is repeated


def test_all_addresses_are_given_in_order() -> None:
    names = {"a.cluster.local": ["10.0.0.1", "10.0.0.2"]}
    assert read(answer(query("a.cluster.local"), names)) == (0, ["10.0.0.1", "10.0.0.2"])


@pytest.mark.parametrize("damaged", [b"", b"short", query("a.cluster.local")[:-3], b"\xff" * 40])
def test_damage_is_no_crash(damaged: bytes) -> None:
    reply = answer(damaged, NAMES)
    assert reply == b"" or reply[3] & 0xF == 1


def service(name: str, address: str) -> Any:
    return Thing(metadata=Thing(name=name, namespace="prod"), spec=Thing(cluster_ip=address))


def test_services_and_pods_have_names() -> None:
    pods = [Thing(ip="10.1.0.5", hostname="j-0"), Thing(ip="10.1.0.6", hostname=None)]
    listed = [service("redis", "10.96.0.7"), service("j", "None"), service("idle", "None")]
    endpoints = [
        Thing(metadata=Thing(name="j", namespace="prod"), subsets=[Thing(addresses=pods)]),
        Thing(metadata=Thing(name="redis", namespace="prod"), subsets=[Thing(addresses=pods)]),
        Thing(metadata=Thing(name="idle", namespace="prod"), subsets=None),
    ]
    assert names_of(listed, endpoints) == {
        "redis.prod.svc.cluster.local": ["10.96.0.7"],
        "j.prod.svc.cluster.local": ["10.1.0.5", "10.1.0.6"],
        "j-0.j.prod.svc.cluster.local": ["10.1.0.5"],
        "idle.prod.svc.cluster.local": [],
    }


def test_names_outlive_an_api_that_is_away_and_are_looked_up_once_a_second() -> None:
    now, looks = [0.0], 0

    def look() -> dict[str, list[str]]:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise OSError("refused")
        return {"a": [str(looks)]}

    directory = Directory(look, lambda: now[0])
    assert directory.names() == directory.names() == {"a": ["1"]}
    now[0] = 1.0
    assert directory.names() == {"a": ["1"]}
    now[0] = 2.0
    assert directory.names() == {"a": ["3"]}
