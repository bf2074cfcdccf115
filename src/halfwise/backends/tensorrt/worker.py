"""The TensorRT worker: one file that runs where TensorRT is, and is sent there when it starts.

It needs Python ≥ 3.8, numpy and `tensorrt` 8.5 to 11.4; CUDA is reached through the driver library
alone. halfwise starts an interpreter (`python3`, `docker run -i … python3`, `ssh orin python3`) and
writes this source to its standard input; nothing is installed there.

Two processes run it. The *supervisor* speaks with halfwise over standard input and output, and never
imports TensorRT. Its *child* does the work. So a segmentation fault, an abort, a kill for memory and
a hang are answers (`died`), with the true signal even where `ssh` or `docker` would hide it; and a
lost connection ends both.

A frame is `MAGIC`, the lengths of header and payload (big-endian u32 and u64), a JSON header and the
payload. What stands between frames is noise: banners of shells and containers. Requests have `op`,
`id` and perhaps `timeout` in seconds. Answers have `id` and `kind`:

========== ===========================================================================
`log`      `severity`, `text`: a line of TensorRT's logger, or of the child's own output
`progress` `phase`, `done`, `total`: how far a build is
`waiting`  another build has this GPU; the timeout starts anew when `started` comes
`started`  the work itself begins
`result`   the request is done; further keys and the payload as its function says
`error`    `code`, `message`, `hint`: the request cannot be done
`died`     `reason` (`signal`, `exit` or `timeout`), `signal`, `status`: the child is gone
========== ===========================================================================

One request at a time. Everything kept here is a file in `cache`, named by its SHA-256.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import platform
import select
import signal
import struct
import sys
import tempfile
import time
import traceback

PROTOCOL = 1
MAGIC = b"\x00\xffHALFWISE\xff\x01"
_LENGTHS = struct.Struct(">IQ")
MOST_HEADER_BYTES = 1 << 28
OLDEST = (8, 5)
NEWEST_CHECKED = (11, 4)
FIRST_UNKNOWN = (12, 0)
CHUNK = 1 << 20
_UNUSED_DAYS = 14


# ---------------------------------------------------------------------------------------- frames


def pack(header, payload=b""):
    """Return the bytes of a frame: `header` is what JSON can hold, `payload` bytes."""
    text = json.dumps(header).encode()
    return b"".join((MAGIC, _LENGTHS.pack(len(text), len(payload)), text, payload))


class Unpacker:
    """Takes bytes as they come and gives frames and the noise between them."""

    def __init__(self):
        """Start with nothing."""
        self._data = bytearray()

    def feed(self, data):
        """Take bytes; return a list of `(header, payload, noise)`.

        `header` and `payload` are None where only noise came; `noise` is what stood before the
        frame. Bytes that may yet become a frame are kept.
        """
        self._data += data
        found = []
        while True:
            start = self._data.find(MAGIC)
            if start < 0:
                found += self._noise(len(self._data) - _partial(self._data))
                return found
            found += self._noise(start)
            begin = len(MAGIC) + _LENGTHS.size
            if len(self._data) < begin:
                return found
            header_bytes, payload_bytes = _LENGTHS.unpack_from(self._data, len(MAGIC))
            end = begin + header_bytes + payload_bytes
            if header_bytes > MOST_HEADER_BYTES:
                found += self._noise(len(MAGIC))
                continue
            if len(self._data) < end:
                return found
            header = _header(bytes(self._data[begin : begin + header_bytes]))
            if header is None:
                found += self._noise(len(MAGIC))
                continue
            found.append((header, bytes(self._data[begin + header_bytes : end]), b""))
            del self._data[:end]

    def _noise(self, count):
        if count <= 0:
            return []
        noise = bytes(self._data[:count])
        del self._data[:count]
        return [(None, None, noise)]


def _header(text):
    try:
        header = json.loads(text.decode())
    except ValueError:
        return None
    return header if isinstance(header, dict) else None


def _partial(data):
    """Return how many last bytes of `data` may begin a marker."""
    for count in range(min(len(MAGIC) - 1, len(data)), 0, -1):
        if data.endswith(MAGIC[:count]):
            return count
    return 0


def _write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


# ------------------------------------------------------------------------------------ supervisor


class _Child:
    """The process that works: its pipes, and the request that it is at."""

    def __init__(self, inherited):
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        self.output, output = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become_child(inherited, (requests, answers, output), self)
        for fd in (requests, answers, output):
            os.close(fd)
        os.set_blocking(self.requests, False)
        self.unpacker = Unpacker()
        self.unsent = b""
        self.line = b""
        self.request = None
        self.deadline = None

    def close(self):
        for fd in (self.requests, self.answers, self.output):
            os.close(fd)


def _become_child(inherited, pipes, child):
    """Serve requests in the forked process; never returns."""
    requests, answers, output = pipes
    try:
        os.setsid()
        _die_with_parent()
        for fd in (*inherited, child.requests, child.answers, child.output):
            os.close(fd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # The pipe of line-buffered text: what Python prints stands in order with what C++ prints.
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
        Service(requests, answers).serve()
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _die_with_parent():
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Supervisor:
    """Carries requests to the child, answers back, and tells how the child ended."""

    def __init__(self, stdin, stdout):
        """Take the descriptors that lead to halfwise."""
        self.stdin, self.stdout = stdin, stdout
        self.unpacker = Unpacker()
        self.child = None
        self.pending = collections.deque()

    def serve(self):
        """Serve until standard input ends."""
        try:
            while self._step():
                pass
        finally:
            self._end_child()

    def _step(self):
        child = self.child
        if self.pending and (child is None or child.request is None):
            self._begin(*self.pending.popleft())
            child = self.child
        reading = [self.stdin]
        writing = []
        if child is not None:
            reading += [child.answers, child.output]
            writing = [child.requests] if child.unsent else []
        wait = None
        if child is not None and child.deadline is not None:
            wait = max(0.0, child.deadline - time.monotonic())
        ready, writable, _ = select.select(reading, writing, [], wait)
        if writable:
            self._pass_on(child)
        if child is not None and child.output in ready:
            self._relay_output(child)
        if child is not None and child.answers in ready and not self._relay_answers(child):
            self._tell_death(child, None)
        elif child is not None and child.deadline is not None:
            if time.monotonic() >= child.deadline and child.request is not None:
                self._tell_death(child, "timeout")
        if self.stdin in ready:
            data = os.read(self.stdin, CHUNK)
            if not data:
                return False
            frames = self.unpacker.feed(data)
            self.pending.extend((h, p) for h, p, _ in frames if h is not None)
        return True

    def _begin(self, header, payload):
        if self.child is None:
            self.child = _Child((self.stdin, self.stdout))
        child = self.child
        child.request = header
        child.unsent = pack(header, payload)
        self._start_clock(child)

    def _start_clock(self, child):
        timeout = child.request.get("timeout")
        child.deadline = None if timeout is None else time.monotonic() + float(timeout)

    def _pass_on(self, child):
        try:
            child.unsent = child.unsent[os.write(child.requests, child.unsent[:CHUNK]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            child.unsent = b""  # its answers end too, and then its death is told

    def _relay_output(self, child):
        data = os.read(child.output, CHUNK)
        lines = (child.line + data).split(b"\n")
        child.line = lines.pop()
        if not data and child.line:
            lines, child.line = [child.line], b""
        for line in lines:
            self._log("output", line.decode(errors="replace"), child)

    def _relay_answers(self, child):
        data = os.read(child.answers, CHUNK)
        if not data:
            return False
        for header, payload, _ in child.unpacker.feed(data):
            if header is None:
                continue
            kind = header.get("kind")
            if kind == "waiting":
                child.deadline = None
            elif kind == "started":
                self._start_clock(child)
            elif kind in ("result", "error"):
                child.request = child.deadline = None
            _write_all(self.stdout, pack(header, payload))
        return True

    def _tell_death(self, child, reason):
        request = child.request
        self._drain(child)
        status = self._end_child()
        if request is None:
            return
        signalled = os.WIFSIGNALED(status)
        number = os.WTERMSIG(status) if signalled else None
        answer = {
            "id": request.get("id"),
            "kind": "died",
            "reason": reason or ("signal" if signalled else "exit"),
            "signal": _signal_name(number),
            "status": None if signalled else os.WEXITSTATUS(status),
        }
        _write_all(self.stdout, pack(answer))

    def _drain(self, child):
        """Relay what the child wrote before it died: the last lines tell the most."""
        while select.select([child.output], [], [], 0.05)[0]:
            before = child.line
            self._relay_output(child)
            if child.line == before == b"":
                return

    def _end_child(self):
        child, self.child = self.child, None
        if child is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            # Its whole session: what it started ends with it.
            if os.waitpid(child.pid, os.WNOHANG)[0] == 0:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
        child.close()
        return child.pid

    def _log(self, severity, text, child):
        identifier = None if child.request is None else child.request.get("id")
        frame = {"id": identifier, "kind": "log", "severity": severity, "text": text}
        _write_all(self.stdout, pack(frame))
