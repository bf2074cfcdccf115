"""Writes PNG files (ISO/IEC 15948): 8 bits per channel, no palette, pixels filtered.

The filter predicts each pixel from its neighbours, which halves photographs.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_COLOUR_TYPES = {1: 0, 3: 2}
"""Colour types by number of channels: grey, and red, green and blue (table 11.1)."""
_PAETH = 4
"""A filter that stores each byte's difference from its nearest neighbour (9.4)."""


def png(image: NDArray[np.uint8]) -> bytes:
    """Return an image as a PNG file.

    Args:
        image: u8[height, width, 1 or 3], of one pixel or more.
    """
    height, width, channels = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    rows = np.full((height, 1 + width * channels), _PAETH, np.uint8)
    rows[:, 1:] = _filtered(image).reshape(height, -1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _filtered(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return each byte's difference from its left, upper or upper left neighbour, modulo 256."""
    around = np.pad(image.astype(np.int16), ((1, 0), (1, 0), (0, 0)))
    left, upper, corner = around[1:, :-1], around[:-1, 1:], around[:-1, :-1]
    estimate = left + upper - corner
    a, b, c = (np.abs(estimate - one) for one in (left, upper, corner))
    nearest = np.where((a <= b) & (a <= c), left, np.where(b <= c, upper, corner))
    return (image - nearest).astype(np.uint8)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
