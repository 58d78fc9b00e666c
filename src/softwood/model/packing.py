"""Integers to and from few bytes: neighbours differ little, and most differences fit one byte.

The differences of neighbours, the first from 0, are mapped to 0, 1, 2, ... (0, -1, 1, -2, ... in this order); the low
bytes of all of them are followed by their next bytes, and so on; the whole is deflated (RFC 1950). docs/file-format.md
tells other readers the same.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Deflate makes at most this many bytes of one.
_MAX_RATIO = 1032


def pack_integers(values: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """Bytes [b] of integers [n] of one type.

    Examples
    --------
    >>> values = np.array([3, 3, 2, 900], dtype=np.int16)
    >>> unpack_integers(pack_integers(values), 4, np.int16)
    array([  3,   3,   2, 900], dtype=int16)
    """
    bits = 8 * values.itemsize
    signed = values.astype(f"<i{values.itemsize}")
    difference = np.diff(signed, prepend=signed.dtype.type(0))  # modulo 2^bits, as is the way back
    mapped = (difference << 1) ^ (difference >> (bits - 1))
    planes = mapped.view(np.uint8).reshape(len(values), values.itemsize).T
    return np.frombuffer(zlib.compress(planes.tobytes(), 9), dtype=np.uint8)


def unpack_integers(packed: NDArray[np.uint8], count: int, dtype: Any) -> NDArray[Any]:
    """The integers again; a ValueError if the bytes do not hold exactly `count` of them."""
    dtype = np.dtype(dtype)
    n_bytes = count * dtype.itemsize
    if packed.dtype != np.uint8 or packed.ndim != 1 or not 0 <= n_bytes <= _MAX_RATIO * (len(packed) + 1):
        raise ValueError(f"{len(packed)} packed bytes cannot hold {count} integers.")
    inflate = zlib.decompressobj()
    try:
        contents = inflate.decompress(packed.tobytes(), n_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"packed integers are damaged: {error}.") from None
    if len(contents) != n_bytes or not inflate.eof or inflate.unused_data:
        raise ValueError(f"packed bytes must hold {count} integers; they hold {len(contents)} bytes.")
    planes = np.frombuffer(contents, dtype=np.uint8).reshape(dtype.itemsize, count)
    mapped = np.ascontiguousarray(planes.T).view(f"<u{dtype.itemsize}").ravel()
    one = mapped.dtype.type(1)
    difference = (mapped >> one) ^ (~(mapped & one) + one)
    return np.cumsum(difference, dtype=mapped.dtype).astype(dtype)
