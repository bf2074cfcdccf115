"""Split a worker's output into frames and noise, within limits.

The worker's own `Unpacker` trusts halfwise; this side trusts nobody. Lengths are checked before
the bytes are kept, and a header before its payload is.
"""

from collections.abc import Callable, Sequence
from typing import Any

from halfwise.tensorrt.worker.worker import LENGTHS, MAGIC, partial_marker

MOST_HEADER_BYTES = 1 << 25
"""The largest honest header lists a network's layers: 100,000 of some 300 bytes each."""
MOST_VALUES = 1 << 20
"""Largest number of values in a header: each takes up to 120 bytes of memory here. A layer has
eight."""
MOST_PAYLOAD_BYTES = 1 << 35
"""Limit per frame, which may hold the arrays of one sample; requests expect less."""
LONGEST_LINE = 2000
"""Largest number of characters kept of a line of noise."""

ENDS = ("result", "error", "died")
"""Kinds of frames that end a request."""

Header = dict[str, Any]
Admit = Callable[[Header, int], None]
"""Takes the header of a frame and the number of bytes that follow it; raises `Unfit` if the frame
may not come now."""


class Unfit(Exception):
    """A worker sends something invalid; the text is a clause that follows its name."""


class Lost(Exception):
    """The connection to a worker is gone.

    Attributes:
        reason: How, a clause such as "ssh ended with status 255".
        printed: The last lines that the command printed outside of frames.
    """

    def __init__(self, reason: str, printed: Sequence[str]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.printed = tuple(printed)


class Waited(Exception):
    """Another build has held the GPU for `seconds`, the longest that a request may wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Reader:
    """Splits incoming bytes into frames and the noise between them."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._header: Header | None = None
        self._payload = bytearray()
        self._missing = 0

    def take(self, data: bytes) -> None:
        """Take bytes, split anywhere."""
        if self._missing:
            self._payload += memoryview(data)[: self._missing]
            taken = min(self._missing, len(data))
            self._missing -= taken
            data = data[taken:]
        self._data += data

    def next(self, admit: Admit) -> bytes | tuple[Header, memoryview] | None:
        """Return noise, or a frame's header and payload; None if more bytes are needed.

        Bytes that may still become a frame are kept.

        Raises:
            Unfit: a frame is too long, cannot be read, or is not admitted.
        """
        if self._header is None:
            start = self._data.find(MAGIC)
            count = start if start >= 0 else len(self._data) - partial_marker(self._data)
            if count:
                noise = bytes(self._data[:count])
                del self._data[:count]
                return noise
            self._begin(admit)
        if self._header is None or self._missing:
            return None
        found = self._header, memoryview(self._payload).toreadonly()
        self._header, self._payload = None, bytearray()
        return found

    def _begin(self, admit: Admit) -> None:
        """Take the header of the frame at the start of the bytes, if it is complete."""
        begin = len(MAGIC) + LENGTHS.size
        if len(self._data) < begin:
            return
        header_bytes, payload_bytes = LENGTHS.unpack_from(self._data, len(MAGIC))
        for what, size, most in (
            ("a header", header_bytes, MOST_HEADER_BYTES),
            ("a payload", payload_bytes, MOST_PAYLOAD_BYTES),
        ):
            if size > most:
                raise Unfit(f"announces {what} of {size} bytes; at most {most} are allowed")
        end = begin + header_bytes
        if len(self._data) < end:
            return
        header = _decoded(self._data[begin:end])
        admit(header, payload_bytes)
        del self._data[:end]
        self._header = header
        self._payload = self._data[:payload_bytes]
        del self._data[:payload_bytes]
        self._missing = payload_bytes - len(self._payload)


def values(text: bytes | bytearray) -> int:
    """Return an upper bound on the number of values in a JSON text, without parsing it."""
    return sum(map(text.count, (b",", b"[", b"{")))


def _decoded(text: bytearray) -> Header:
    if values(text) > MOST_VALUES:
        raise Unfit(f"sends a header of more than {MOST_VALUES} values")
    from pydantic_core import from_json  # noqa: PLC0415 - a worker is started before it is loaded

    try:
        header = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise Unfit(f"sends a header that cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise Unfit("sends a header that is not a JSON object")
    return header


class Lines:
    """Splits noise into lines, and shortens long ones so that noise cannot fill the memory."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Take bytes; return the complete lines, without empty ones."""
        *lines, rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = rest[:LONGEST_LINE]
        texts = (line[:LONGEST_LINE].decode(errors="replace").rstrip() for line in lines)
        return list(filter(None, texts))

    def rest(self) -> list[str]:
        """Return the unterminated last line, if any."""
        return self.feed(b"\n")
