"""Names of services and pods for the test cluster, which has no CoreDNS: answers A queries for
`service.namespace.svc.cluster.local` and `pod.service.namespace.svc.cluster.local` over UDP.

`python -m tools.cluster_dns KUBECONFIG ADDRESS` serves until it is ended. It looks into the API
when it is asked, at most once a second. Everything outside `cluster.local` is refused: pods of the
test have no business there.
"""

from __future__ import annotations

import argparse
import logging
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubernetes import client, config

log = logging.getLogger(__name__)

ZONE = "cluster.local"
Names = Mapping[str, Sequence[str]]  # name, lower case, without a final dot -> IPv4 addresses
_NO_ERROR, _FORMAT_ERROR, _NO_NAME, _REFUSED = 0, 1, 3, 5
_A, _IN = 1, 1
_TTL_SECONDS = 1
_LOOK_SECONDS = 1.0
_API_SECONDS = 5.0


def answer(query: bytes, names: Names) -> bytes:
    """The reply to one query (RFC 1035, one question); names without an address of the type that is
    asked for exist and are empty.
    """
    if len(query) < 12:
        return b""  # nothing to address a complaint to
    identity, flags, questions = struct.unpack(">HHH", query[:6])
    try:
        name, end = _name(query)
        kind, kin = struct.unpack(">HH", query[end : end + 4])
    except (IndexError, struct.error, UnicodeDecodeError):
        return _header(identity, flags, _FORMAT_ERROR, 0, 0)
    question = query[12 : end + 4]
    if questions != 1 or kin != _IN:
        return _header(identity, flags, _FORMAT_ERROR, 1, 0) + question
    if not name.endswith("." + ZONE):
        return _header(identity, flags, _REFUSED, 1, 0) + question
    found = names.get(name)
    if found is None:
        return _header(identity, flags, _NO_NAME, 1, 0) + question
    records = [_record(address) for address in found] if kind == _A else []
    return _header(identity, flags, _NO_ERROR, 1, len(records)) + question + b"".join(records)


def _name(query: bytes) -> tuple[str, int]:
    labels, at = [], 12
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode("ascii"))
        at += 1 + size
    return ".".join(labels).lower(), at + 1


def _header(identity: int, flags: int, code: int, questions: int, answers: int) -> bytes:
    # An authoritative reply; opcode and "recursion desired" are the query's.
    said = 0x8400 | (flags & 0x7900) | code
    return struct.pack(">HHHHHH", identity, said, questions, answers, 0, 0)


def _record(address: str) -> bytes:
    # 0xC00C points to the question's name.
    head = struct.pack(">HHHIH", 0xC00C, _A, _IN, _TTL_SECONDS, 4)
    return head + socket.inet_aton(address)


def names_of(services: Sequence[Any], endpoints: Sequence[Any]) -> dict[str, list[str]]:
    """Names for what the API lists: a service's address; of a headless one all its pods', and each
    pod's by its host name.
    """
    names: dict[str, list[str]] = {}
    headless = set()
    for service in services:
        name = f"{service.metadata.name}.{service.metadata.namespace}.svc.{ZONE}"
        if service.spec.cluster_ip in (None, "", "None"):
            headless.add(name)
            names[name] = []
        else:
            names[name] = [service.spec.cluster_ip]
    for entry in endpoints:
        name = f"{entry.metadata.name}.{entry.metadata.namespace}.svc.{ZONE}"
        if name not in headless:
            continue
        for subset in entry.subsets or []:
            for address in subset.addresses or []:
                names[name].append(address.ip)
                if address.hostname:
                    names.setdefault(f"{address.hostname}.{name}", []).append(address.ip)
    return names


class Directory:
    """The names as they were within the last second; the last known ones while the API is away."""

    def __init__(self, look: Callable[[], Names], clock: Callable[[], float]) -> None:
        self._look, self._clock = look, clock
        self._names: Names = {}
        self._looked = float("-inf")

    def names(self) -> Names:
        """Looks again when the last look is a second old."""
        if self._clock() - self._looked >= _LOOK_SECONDS:
            try:
                self._names = self._look()
            except Exception as error:  # whatever it is, older names are better than none
                log.warning("the API did not answer: %s", error)
            self._looked = self._clock()
        return self._names


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(prog="python -m tools.cluster_dns", description=__doc__)
    parser.add_argument("kubeconfig")
    parser.add_argument("address", help="IPv4 address to listen on, port 53")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    core = client.CoreV1Api(config.new_client_from_config(arguments.kubeconfig))

    def look() -> Names:
        services = core.list_service_for_all_namespaces(_request_timeout=_API_SECONDS)
        endpoints = core.list_endpoints_for_all_namespaces(_request_timeout=_API_SECONDS)
        return names_of(services.items, endpoints.items)

    directory = Directory(look, time.monotonic)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.bind((arguments.address, 53))
        log.info("answering on %s:53", arguments.address)
        while True:
            query, sender = door.recvfrom(1500)
            reply = answer(query, directory.names())
            if reply:
                door.sendto(reply, sender)


if __name__ == "__main__":
    main()
