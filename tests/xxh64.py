"""XXH64 in plain Python, written from the specification: the tests' independent reference."""

from __future__ import annotations

P1 = 11400714785074694791
P2 = 14029467366897019727
P3 = 1609587929392839161
P4 = 9650029242287828579
P5 = 2870177450012600261
WORD = (1 << 64) - 1


def _rotl(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & WORD


def _round(acc: int, lane: int) -> int:
    return (_rotl((acc + lane * P2) & WORD, 31) * P1) & WORD


def xxh64(data: bytes, seed: int = 0) -> int:
    at, size = 0, len(data)
    if size >= 32:
        accs = [(seed + P1 + P2) & WORD, (seed + P2) & WORD, seed, (seed - P1) & WORD]
        while size - at >= 32:
            for i in range(4):
                lane = int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little")
                accs[i] = _round(accs[i], lane)
            at += 32
        turns = (1, 7, 12, 18)
        acc = sum(_rotl(a, bits) for a, bits in zip(accs, turns, strict=True)) & WORD
        for a in accs:
            acc = ((acc ^ _round(0, a)) * P1 + P4) & WORD
    else:
        acc = (seed + P5) & WORD
    acc = (acc + size) & WORD
    while size - at >= 8:
        acc ^= _round(0, int.from_bytes(data[at : at + 8], "little"))
        acc = (_rotl(acc, 27) * P1 + P4) & WORD
        at += 8
    if size - at >= 4:
        acc ^= (int.from_bytes(data[at : at + 4], "little") * P1) & WORD
        acc = (_rotl(acc, 23) * P2 + P3) & WORD
        at += 4
    for byte in data[at:]:
        acc = (_rotl(acc ^ ((byte * P5) & WORD), 11) * P1) & WORD
    acc = ((acc ^ (acc >> 33)) * P2) & WORD
    acc = ((acc ^ (acc >> 29)) * P3) & WORD
    return acc ^ (acc >> 32)
