"""Start a worker with a command, and exchange frames with it.

The command of a TensorRT worker ends in an interpreter; an appended bootstrap reads the worker's
source from standard input, so nothing is installed where it runs. A single loop serves the pipes:
reading never waits for writing, so neither side can block the other for good.
"""

import json
import math
import os
import select
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from halfwise.files import BLOCK
from halfwise.memory import uncap
from halfwise.tensorrt import worker
from halfwise.tensorrt.answers import ENDS, Header, Unfit, admit
from halfwise.tensorrt.worker import LENGTHS, MAGIC, pack
from halfwise.wording import seconds

GRACE_SECONDS = 2.0
"""Seconds that a process has to end once told to. Our choice."""
KILL_SECONDS = 5.0
"""Seconds that a process has to end otherwise. A child stuck in the driver may take longer, and is
left alone. Our choice."""
GRACE = GRACE_SECONDS + KILL_SECONDS
"""Seconds beyond a request's own time-out, which the worker enforces, until the connection counts
as lost: as long as the worker waits for a process stuck in the driver."""
LONGEST_LINE = 1 << 14
"""Largest number of characters kept of a line: bounds memory."""
LAST_LINES = 30
"""Number of last lines of the command's output to keep."""
_LOOK_SECONDS = 1.0
"""Seconds between two looks at a worker, and for one that failed to say why. Our choice."""
_LAST_WORDS_SECONDS = 0.2
"""Time for the last words of a child that died to arrive beside the news of it. Our choice."""

# One line without single quotes, so any remote shell accepts it in single quotes. The one-byte
# buffer makes `read` take exactly the source: frames follow it. The first entry of `sys.path`
# would be the working directory, from which a stray numpy.py must not be imported.
_BOOTSTRAP = (
    "import io,sys;"
    "sys.version_info<(3,8)and sys.exit("
    '"halfwise needs Python 3.8 or later there; this is Python "+sys.version.split()[0]);'
    'sys.stdin.isatty()and sys.exit("halfwise needs pipes there, not a terminal");'
    "sys.path[0]or sys.path.pop(0);"
    "exec(compile(io.BufferedReader(io.FileIO(0,closefd=False),1).read(%d),"
    '"halfwise-worker","exec"))'
)

Admit = Callable[[Header, int, Header, int], None]
Heard = Callable[[Header], None]
"""Takes the header of a frame that does not end its request: `log` or `started`. Output of the
command itself comes as `log` with severity "noise"."""


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


class Ended(Lost):
    """The connection was ended here, because nobody waits for the answer any more."""


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


def worker_source() -> bytes:
    """Return the worker's source as sent."""
    return Path(worker.__file__).read_bytes()


def full_command(command: Sequence[str], source_bytes: int) -> list[str]:
    """Return `command` with the bootstrap appended.

    `ssh` joins its words for the remote shell to parse, so the bootstrap is quoted once for every
    word `ssh` (also within words, and after a path), whatever that means there. All other
    programs are assumed to pass words on unchanged, as docker, podman and kubectl do.
    """
    bootstrap = _BOOTSTRAP % source_bytes
    for word in " ".join(command).split():
        bootstrap = shlex.quote(bootstrap) if Path(word).name == "ssh" else bootstrap
    return [*command, "-c", bootstrap]


Frame = tuple[Header, bytes]
"""Header and payload."""


class Unpacker:
    """Splits incoming bytes into frames and the noise between them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> tuple[list[Frame], bytes]:
        """Take bytes; return the frames that are complete, and the noise around them.

        Bytes that may still become a frame are kept.

        Raises:
            ValueError, RecursionError: a header is not JSON.
        """
        self._data += data
        frames, noise = list[Frame](), bytearray()
        begin = len(MAGIC) + LENGTHS.size
        while True:
            start = self._data.find(MAGIC)
            before = start if start >= 0 else len(self._data) - partial_marker(self._data)
            noise += self._data[:before]
            del self._data[:before]
            if start < 0 or len(self._data) < begin:
                return frames, bytes(noise)
            header_bytes, payload_bytes = LENGTHS.unpack_from(self._data, len(MAGIC))
            # Headers are ASCII: where another frame begins in one, a child died as it wrote it.
            following = self._data.find(MAGIC, begin, begin + header_bytes)
            end = begin + header_bytes + payload_bytes
            if following >= 0:
                noise += self._data[:following]
                del self._data[:following]
            elif len(self._data) < end:
                return frames, bytes(noise)
            else:
                header = json.loads(self._data[begin : begin + header_bytes].decode())
                frames.append((header, bytes(self._data[begin + header_bytes : end])))
                del self._data[:end]


def partial_marker(data: bytes | bytearray) -> int:
    """Return how many bytes at the end of `data` may begin a marker."""
    for count in range(min(len(MAGIC) - 1, len(data)), 0, -1):
        if data.endswith(MAGIC[:count]):
            return count
    return 0


class Connection:
    """A worker's process, and the pipes to it.

    Closing it ends the process and everything that it started on this machine.
    """

    def __init__(self, command: Sequence[str], source: bytes = b"") -> None:
        """Start `command`, and run the worker's `source` in it, if any.

        Raises:
            OSError: the command cannot be started.
        """
        self._name = Path(command[0]).name
        self._process = subprocess.Popen(
            full_command(command, len(source)) if source else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Its own session: Ctrl-C does not reach it, a password prompt of ssh fails at
            # once instead of waiting, and ending it ends what it started.
            start_new_session=True,
        )
        process = self._process
        # Builders map more than they use.
        uncap(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._unpacker = Unpacker()
        self._frames: deque[Frame] = deque()
        self._noise, self._errors = Lines(), Lines()
        self._printed: deque[str] = deque(maxlen=LAST_LINES)
        self._unsent = deque([memoryview(source)])
        self._number = 0
        self.closed = False

    @property
    def process_id(self) -> int:
        """ID of the command's process, the leader of its session."""
        return self._process.pid

    def ask(
        self,
        header: Header,
        payload: bytes = b"",
        *,
        admit: Admit = admit,
        timeout: float | None = None,
        limit: float | None = None,
        heard: Heard = lambda _: None,
        ends: Callable[[], bool] = lambda: False,
    ) -> tuple[Header, bytes]:
        """Send a request; return header and payload of the frame that ends it.

        Args:
            header: `op` and its arguments.
            payload: Its bytes.
            admit: Checks its frames, see `answers.admit`.
            timeout: Seconds for the work, which the worker enforces.
            limit: Seconds for the connection to answer; by default `timeout` + `GRACE`.
            heard: Receives the frames before the last.
            ends: Returns whether the answer is no longer wanted; asked every second at least.

        Returns:
            A frame of kind `result`, `error` or `died`.

        Raises:
            Lost: the connection is gone or too slow; it is then closed.
            Ended: the answer is no longer wanted; likewise.
            Unfit: the worker sends something invalid; likewise.
        """
        self._number += 1
        request = {**header, "id": self._number}
        if timeout is not None:
            request["timeout"] = timeout
            limit = timeout + GRACE if limit is None else limit
        self._unsent.append(memoryview(pack(request, payload)))
        try:
            return self._answer(partial(admit, request, self._number), limit, heard, ends)
        except (Ended, Unfit):
            self.close(patience=0.0)
            raise

    def _answer(
        self,
        admit: Callable[[Header, int], None],
        limit: float | None,
        heard: Heard,
        ends: Callable[[], bool],
    ) -> tuple[Header, bytes]:
        deadline, started = _after(limit), False
        while True:
            if ends():
                raise Ended("it was ended", self._printed)
            if self._frames:
                header, payload = self._frames.popleft()
                admit(header, len(payload))
                if header["kind"] == "died":  # the last words tell the most
                    self._overhear(heard, _LAST_WORDS_SECONDS)
                if header["kind"] in ENDS:
                    return header, payload
                # Saying so again and again buys no time.
                if header["kind"] == "started" and not started:
                    deadline, started = _after(limit), True
                heard(header)
            # Endless frames and noise must not keep the connection alive.
            if deadline is not None and not _remaining(deadline):
                self._lose(f"{self._name} did not answer within {seconds(limit or 0.0)}", heard)
            if not self._frames:
                self._receive(deadline, heard)

    def _receive(self, deadline: float | None, heard: Heard) -> None:
        """Wait for the pipes once, and take what is available."""
        reading = [pipe for pipe in (self._stdout, self._stderr) if not pipe.closed]
        wait = min(_LOOK_SECONDS, math.inf if deadline is None else _remaining(deadline))
        ready = _ready(reading, [self._stdin] if self._unsent else [], wait)
        if self._stdin in ready:
            self._send()
        if self._stderr in ready:
            self._read_errors(heard)
        ended = False
        if self._stdout in ready:
            data = os.read(self._stdout.fileno(), BLOCK)
            ended = not data
            try:
                frames, noise = self._unpacker.feed(data)
            except (ValueError, RecursionError) as error:
                raise Unfit("sends a header that cannot be read") from error
            self._frames += frames
            self._hear(self._noise.feed(noise), heard)
        # Processes that a command left in the background may keep its output open.
        if ended or (not ready and self._ended_within(0.0) is not None):
            self._lose(self._collect_end(heard), heard)

    def _send(self) -> None:
        try:
            sent = os.write(self._stdin.fileno(), self._unsent[0][:BLOCK])
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent.clear()  # its output ends next and gives the reason
            return
        self._unsent[0] = self._unsent[0][sent:]
        if not self._unsent[0]:
            self._unsent.popleft()

    def _read_errors(self, heard: Heard) -> None:
        data = os.read(self._stderr.fileno(), BLOCK)
        self._hear(self._errors.feed(data), heard)
        if not data:
            self._stderr.close()

    def _overhear(self, heard: Heard, seconds: float) -> None:
        """Hear the error output for some seconds, or until it ends."""
        deadline = time.monotonic() + seconds
        while not self._stderr.closed and _ready([self._stderr], [], _remaining(deadline)):
            self._read_errors(heard)
        self._hear(self._errors.rest(), heard)

    def _hear(self, lines: Iterable[str], heard: Heard) -> None:
        for line in lines:
            self._printed.append(line)
            heard({"kind": "log", "severity": "noise", "text": line})

    def _collect_end(self, heard: Heard) -> str:
        """Read the last output of the ending process; return how it ended."""
        self._overhear(heard, _LOOK_SECONDS)
        status = self._ended_within(_LOOK_SECONDS)
        if status is None:
            return f"{self._name} closed its output"
        if status >= 0:
            return f"{self._name} ended with status {status}"
        return f"{self._name} was ended by {signal.Signals(-status).name}"

    def _lose(self, reason: str, heard: Heard) -> NoReturn:
        self._hear([*self._noise.rest(), *self._errors.rest()], heard)
        self.close(patience=0.0)
        raise Lost(reason, self._printed)

    def close(self, patience: float = KILL_SECONDS) -> None:
        """End the process and its session: first close its input, then send signals.

        Args:
            patience: Seconds for it to exit by itself.
        """
        if self.closed:
            return
        self.closed = True
        self._stdin.close()
        try:
            if self._ended_within(patience) is None:
                self._signal(signal.SIGTERM)
                self._ended_within(GRACE_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._stdout.close()
            self._stderr.close()

    def _ended_within(self, seconds: float) -> int | None:
        """Return the process's status, or None while it runs; below 0, a signal ended it."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _after(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _remaining(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _ready(
    reading: Iterable[IO[bytes]], writing: Iterable[IO[bytes]], seconds: float
) -> list[IO[bytes]]:
    """Return the pipes ready to read or write; `select` would reject high descriptors."""
    poll = select.poll()
    pipes = {}
    for group, event in ((reading, select.POLLIN), (writing, select.POLLOUT)):
        for pipe in group:
            poll.register(pipe, event)
            pipes[pipe.fileno()] = pipe
    return [pipes[descriptor] for descriptor, _ in poll.poll(math.ceil(seconds * 1000))]
