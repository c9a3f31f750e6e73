"""NetworkPolicies allow the arrows of docs/security.md and nothing else.

The table here is written by hand. Whether a connection is allowed is computed from the rendered
policies by Kubernetes' rule: the sender's egress and the receiver's ingress must both allow it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.kubernetes import names
from services.kit.discovery import Role
from tests.fixtures.helm_values import EVERYTHING, RELEASE, Manifest, Render, pods

GRPC, METRICS = names.GRPC_PORT, names.METRICS_PORT
JOB_PARTS = {str(role): role for role in Role}
# (from, to): ports. People, Prometheus and producers are outside of the release.
ARROWS: dict[tuple[str, str], set[int]] = {
    ("people", "gateway"): {8080},
    ("prometheus", "gateway"): {8080},
    ("prometheus", "checkpoint"): {7701},
    **{("prometheus", part): {METRICS} for part in JOB_PARTS},
    ("gateway", "checkpoint"): {7700},
    ("trainer", "sparse-ps"): {GRPC},
    ("trainer", "dense-ps"): {GRPC},
    ("trainer", "trainer"): {GRPC},  # shards that live in trainers
    **{("checkpoint", part): {GRPC} for part in JOB_PARTS},
    **{(part, "redis"): {6379} for part in ("gateway", "checkpoint", *JOB_PARTS)},
    ("trainer", "kafka"): {9092},
    ("kafka", "kafka"): {9092},
    ("producer", "kafka"): {9092},
    ("test", "gateway"): {8080},
    ("test", "checkpoint"): {7701},
}
PORTS = {8080, 7700, 7701, GRPC, METRICS, 6379, 9092, 9093, 443, 22}
Labels = Mapping[str, str]
# (labels of the namespace, labels of the pod)
OUTSIDE: dict[str, tuple[Labels, Labels]] = {
    "people": ({"name": "ingress"}, {}),
    "prometheus": ({"name": "monitoring"}, {}),
    "producer": ({"name": "prod"}, {"app": "clicks"}),
    "stranger": ({"name": "elsewhere"}, {}),
    "neighbour": ({"name": "prod"}, {"app": "wiki"}),
}


def selects(selector: dict[str, Any], labels: Labels) -> bool:
    matches = selector.get("matchLabels", {}).items() <= labels.items()
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        matches &= labels.get(expression["key"]) in expression["values"]
    return bool(matches)


def is_peer(peer: dict[str, Any], place: tuple[Labels, Labels]) -> bool:
    namespace, labels = place
    if "namespaceSelector" in peer:
        return selects(peer["namespaceSelector"], namespace) and selects(
            peer.get("podSelector", {}), labels
        )
    return namespace["name"] == "prod" and selects(peer["podSelector"], labels)


def allows(
    policies: list[Manifest],
    subject: tuple[Labels, Labels],
    other: tuple[Labels, Labels],
    direction: str,
    port: int,
) -> bool:
    """Whether `subject`'s policies allow a connection with `other` in that direction."""
    namespace, labels = subject
    applied = [
        p
        for p in policies
        if namespace["name"] == "prod" and selects(p["spec"]["podSelector"], labels)
    ]
    if not applied:
        return True  # pods that no policy selects are open
    side = {"ingress": "from", "egress": "to"}[direction]
    for rule in (rule for policy in applied for rule in policy["spec"][direction]):
        ports = {p["port"] for p in rule["ports"] if p["protocol"] == "TCP"}
        peers = rule.get(side)
        if port in ports and (peers is None or any(is_peer(peer, other) for peer in peers)):
            return True
    return False


@pytest.fixture
def manifests(render: Render) -> list[Manifest]:
    return render(EVERYTHING)


def places(manifests: list[Manifest]) -> dict[str, tuple[Labels, Labels]]:
    inside = {
        part: ({"name": "prod"}, pod["metadata"]["labels"]) for part, pod in pods(manifests).items()
    }
    jobs = {
        part: ({"name": "prod"}, names.of_role(RELEASE, "clicks-1", 3, role))
        for part, role in JOB_PARTS.items()
    }
    return {**inside, **jobs, **OUTSIDE}


def test_the_arrows_and_nothing_else(manifests: list[Manifest]) -> None:
    policies = [m for m in manifests if m["kind"] == "NetworkPolicy"]
    everyone = places(manifests)
    assert {p for arrow in ARROWS for p in arrow} <= everyone.keys()
    found: dict[tuple[str, str], set[int]] = {}
    for source, target in itertools.product(everyone, everyone):
        if target in OUTSIDE:
            continue
        for port in PORTS:
            a, b = everyone[source], everyone[target]
            if allows(policies, a, b, "egress", port) and allows(policies, b, a, "ingress", port):
                found.setdefault((source, target), set()).add(port)
    assert found == ARROWS


def test_ways_out_of_the_release(manifests: list[Manifest]) -> None:
    policies = [m for m in manifests if m["kind"] == "NetworkPolicy"]
    anywhere: tuple[Labels, Labels] = ({"name": "internet"}, {})
    ways = {
        part: {p for p in PORTS | {6443} if allows(policies, place, anywhere, "egress", p)}
        for part, place in places(manifests).items()
        if part not in OUTSIDE
    }
    assert ways == {
        "gateway": {443, 6443},  # object store and OpenID issuer, API server
        "checkpoint": {443},
        "trainer": {443},
        "sparse-ps": {443},
        "dense-ps": {443},
        "redis": set(),
        "kafka": set(),
        "test": set(),
    }


def test_without_a_broker_of_its_own_trainers_reach_others(render: Render) -> None:
    manifests = render({})
    policies = [m for m in manifests if m["kind"] == "NetworkPolicy"]
    for part, place in places(manifests).items():
        if part not in OUTSIDE:
            reaches = allows(policies, place, ({"name": "internet"}, {}), "egress", 9092)
            assert reaches is (part == "trainer"), part


def test_another_release_in_the_namespace_is_a_stranger(manifests: list[Manifest]) -> None:
    policies = [m for m in manifests if m["kind"] == "NetworkPolicy"]
    everyone = places(manifests)
    other = ({"name": "prod"}, names.of_role("other", "clicks-1", 1, Role.TRAINER))
    for part in ("redis", "sparse-ps", "kafka", "checkpoint"):
        for port in PORTS:
            assert not allows(policies, everyone[part], other, "ingress", port), (part, port)


def test_an_external_redis_is_reached_by_its_port(render: Render) -> None:
    redis = {"enabled": False, "url": "rediss://redis.example.com:6380/0"}
    manifests = render({"redis": redis, "networkPolicy": {"redisPort": 6380}})
    policies = [m for m in manifests if m["kind"] == "NetworkPolicy"]
    for part, place in places(manifests).items():
        if part not in OUTSIDE:
            reaches = allows(policies, place, ({"name": "internet"}, {}), "egress", 6380)
            assert reaches is (part != "test"), part
