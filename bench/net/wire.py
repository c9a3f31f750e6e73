"""A wire between hosts that are network namespaces: every packet takes its time.

Each host's end is a TUN device. A packet leaves a host at the line's rate, one after another, and
arrives after the delay: what `tc netem delay D rate R` does to the device of each host, without
needing that part of the kernel, which many small kernels lack. Nothing is dropped: TCP's windows
bound what is on the way. Linux only; making devices needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import signal
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

DEVICE = Path("/dev/net/tun")
MTU = 65_520  # as the kernel's own segmentation offload would hand packets to a network card
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_LONGEST_WAIT = 0.5  # seconds until the wire looks whether its parent still lives


def open_end(name: str) -> int:
    """File descriptor of a new TUN device `name` in this namespace; it vanishes with it."""
    end = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return end


@dataclass
class Line:
    """Tells when packets arrive that leave one after another."""

    delay: float  # seconds
    rate: float  # bytes a second
    free: float = field(default=0.0)  # when the last packet has left

    def arrival(self, now: float, size: int) -> float:
        """Of a packet of `size` bytes handed over at `now`."""
        self.free = max(now, self.free) + size / self.rate
        return self.free + self.delay


def carry(ends: dict[bytes, int], delay: float, rate: float, parent: int) -> None:
    """Moves packets between `ends`, by IPv4 address, until process `parent` is no longer the
    parent, which it may not be when this begins.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when it is over
    with contextlib.suppress(PermissionError):
        os.nice(-20)  # a wire does not wait for a core
    lines = {end: Line(delay, rate) for end in ends.values()}
    order = itertools.count()
    way: list[tuple[float, int, int, bytes]] = []  # (arrival, order, end, packet)
    while os.getppid() == parent:
        wait = _LONGEST_WAIT if not way else max(0.0, way[0][0] - time.monotonic())
        ready, _, _ = select.select(list(lines), [], [], min(wait, _LONGEST_WAIT))
        for end in ready:
            for packet in _waiting(end):
                target = ends.get(packet[16:20])
                if packet[0] >> 4 == 4 and target is not None:
                    arrival = lines[end].arrival(time.monotonic(), len(packet))
                    heapq.heappush(way, (arrival, next(order), target, packet))
        while way and way[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(way)
            with contextlib.suppress(OSError):  # its host is being taken down
                os.write(target, packet)


def _waiting(end: int) -> Iterable[bytes]:
    """Packets that the host has sent by now."""
    for _ in range(64):
        try:
            yield os.read(end, MTU + 64)
        except OSError:  # none, or the host is being taken down
            return
