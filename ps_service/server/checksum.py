"""CRC-32C of a concatenation from the CRC-32Cs of its parts, so that a reader of some parts can
check the whole.

A CRC is a polynomial over GF(2) modulo P; appending n bytes multiplies it by x^(8n). The method is
that of zlib's `crc32_combine` (Mark Adler), with the Castagnoli polynomial in reflected form.
"""

from __future__ import annotations

from collections.abc import Iterable

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31  # x^0; bit 31 is the lowest power


def _multiply(a: int, b: int) -> int:
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _squares(count: int) -> list[int]:
    """x^(2^k) modulo P for k in 0..count-1."""
    powers = [_ONE >> 1]
    while len(powers) < count:
        powers.append(_multiply(powers[-1], powers[-1]))
    return powers


_POWERS = _squares(64 + 3)  # lengths of up to 2^64 bytes, eight bits each


def combine(parts: Iterable[tuple[int, int]]) -> int:
    """CRC-32C of parts laid end to end, each given as (its CRC-32C, its length in bytes)."""
    total = 0
    for crc, length in parts:
        shift = _ONE
        for k in range(length.bit_length()):
            if length >> k & 1:
                shift = _multiply(_POWERS[k + 3], shift)
        total = _multiply(shift, total) ^ crc
    return total


def masked(crc: int) -> int:
    """`crc` as it is stored beside its own data, as the native core does it: a plain one would make
    the CRC of data and checksum together the same for any data.
    """
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
