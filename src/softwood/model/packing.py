"""Numbers and text to and from few bytes; docs/file-format.md tells other readers the same.

*Runs* of integers that change little (the values of a table) become their first value and the differences of
neighbours. Integers are mapped to 0, 1, 2, ... (0, -1, 1, -2, ... in this order); the low bytes of all of them are
followed by their next bytes, and so on; the whole is deflated (RFC 1950).
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Level of deflate. 9 takes 15 times as long for files that are 1 to 2% smaller.
_LEVEL = 7
# Deflate makes at most this many bytes of one.
_MAX_RATIO = 1032
_MAX_TEXT_BYTES = 100_000_000


def differences(values: NDArray[Any], begin: NDArray[np.int64]) -> NDArray[Any]:
    """Each run's first value and the differences of neighbours, modulo the range of the type; runs begin at `begin`."""
    found = np.diff(values, prepend=values.dtype.type(0))
    first = begin[begin < len(values)]
    found[first] = values[first]
    return found


def runs(changes: NDArray[Any], begin: NDArray[np.int64]) -> NDArray[Any]:
    """Inverse of `differences`; no run is empty.

    Examples
    --------
    >>> values, begin = np.array([5, 6, 9, -3, -3], dtype=np.int16), np.array([0, 3])
    >>> differences(values, begin)
    array([ 5,  1,  3, -3,  0], dtype=int16)
    >>> runs(differences(values, begin), begin)
    array([ 5,  6,  9, -3, -3], dtype=int16)
    """
    total = np.cumsum(changes, dtype=np.int64)
    before = np.concatenate([[0], total])[begin]
    return (total - np.repeat(before, np.diff(np.append(begin, len(total))))).astype(changes.dtype)


def pack_integers(values: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """Bytes [b] of signed integers [n] of one type.

    Examples
    --------
    >>> values = np.array([3, 3, -2, 900], dtype=np.int16)
    >>> unpack_integers(pack_integers(values), 4, np.int16)
    array([  3,   3,  -2, 900], dtype=int16)
    """
    signed = values.astype(f"<i{values.itemsize}")
    return _deflated_planes((signed << 1) ^ (signed >> (8 * values.itemsize - 1)))


def unpack_integers(packed: NDArray[np.uint8], count: int, dtype: Any) -> NDArray[Any]:
    """The integers again; a ValueError if the bytes do not hold exactly `count` of them."""
    dtype = np.dtype(dtype)
    mapped = _inflated_planes(packed, count, dtype.itemsize)
    one = mapped.dtype.type(1)
    return ((mapped >> one) ^ (~(mapped & one) + one)).view(f"<i{dtype.itemsize}").astype(dtype)


def pack_floats(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Bytes [b] of float32 numbers, to the bit: the sign goes behind the other bits, so that exponents make one plane.

    Examples
    --------
    >>> values = np.array([[0.5, -0.0], [3e-40, -7.25]], dtype=np.float32)
    >>> bool(np.all(unpack_floats(pack_floats(values), (2, 2)).view(np.int32) == values.view(np.int32)))
    True
    """
    bits = np.ascontiguousarray(values, dtype="<f4").ravel().view("<u4")
    return _deflated_planes((bits << np.uint32(1)) | (bits >> np.uint32(31)))


def unpack_floats(packed: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The numbers again; a ValueError if the bytes do not hold exactly as many as the shape says."""
    turned = _inflated_planes(packed, math.prod(shape), 4)
    bits = (turned >> np.uint32(1)) | (turned << np.uint32(31))
    return bits.view("<f4").astype(np.float32).reshape(shape)


def _deflated_planes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Low bytes of all values, then their next bytes, and so on, deflated."""
    planes = values.view(np.uint8).reshape(len(values), values.itemsize).T
    return np.frombuffer(zlib.compress(planes.tobytes(), _LEVEL), dtype=np.uint8)


def _inflated_planes(packed: NDArray[np.uint8], count: int, itemsize: int) -> NDArray[Any]:
    n_bytes = count * itemsize
    if not 0 <= n_bytes <= _MAX_RATIO * (packed.size + 1):
        raise ValueError(f"{packed.size} packed bytes cannot hold {count} numbers.")
    contents = _inflate(packed, n_bytes)
    if len(contents) != n_bytes:
        raise ValueError(f"packed bytes must hold {count} numbers; they hold {len(contents)} bytes.")
    planes = np.frombuffer(contents, dtype=np.uint8).reshape(itemsize, count)
    return np.ascontiguousarray(planes.T).view(f"<u{itemsize}").ravel()


def pack_text(text: str) -> NDArray[np.uint8]:
    """Bytes of a text, in UTF-8 and deflated."""
    return np.frombuffer(zlib.compress(text.encode(), _LEVEL), dtype=np.uint8)


def unpack_text(packed: NDArray[np.uint8]) -> str:
    """The text again; a ValueError if the bytes hold none, or a very long one."""
    return _inflate(packed, _MAX_TEXT_BYTES).decode()


def _inflate(packed: NDArray[np.uint8], most: int) -> bytes:
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise ValueError("packed data must be bytes.")
    inflate = zlib.decompressobj()
    try:
        contents = inflate.decompress(packed.tobytes(), most + 1)
    except zlib.error as error:
        raise ValueError(f"packed data are damaged: {error}.") from None
    if len(contents) > most or not inflate.eof or inflate.unused_data:
        raise ValueError(f"packed data are damaged: they must end after at most {most} bytes.")
    return contents
