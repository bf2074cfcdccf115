"""Forks interpreters that have loaded what the fake needs: to load it takes longer than most tests.

`interpreter.c` asks for them. Nothing here knows which version is played: what does is imported in
the fork.
"""

import os
import runpy
import select
import signal
import socket
import struct
import sys
import traceback
import types
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import BinaryIO, NoReturn

_LOADED = ("onnx.checker", "onnx.reference.ops", "onnx.shape_inference", "onnx_ir.passes.common")
_SIZE = struct.Struct("=I")
_STATUS = struct.Struct("=i")


@dataclass(frozen=True)
class _Request:
    """How the client was started."""

    folder: str
    words: list[str]
    environment: dict[str, str]


def _request(connection: socket.socket) -> _Request:
    with connection.makefile("rb") as file:
        (folder,), words, variables = (_words(file) for _ in range(3))
    pairs = (variable.partition("=") for variable in variables)
    return _Request(folder, words, {name: value for name, _, value in pairs})


def _words(file: BinaryIO) -> list[str]:
    (size,) = _SIZE.unpack(file.read(_SIZE.size))
    return [os.fsdecode(word) for word in file.read(size).split(b"\0")[:-1]]


def _become(request: _Request, streams: list[int]) -> NoReturn:
    """Go on as an interpreter that was started so."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1024)
    os.chdir(request.folder)
    paths = os.environ["PYTHONPATH"]
    os.environ.clear()
    os.environ.update(request.environment)
    is_code = request.words[0] == "-c"
    if paths != os.environ.get("PYTHONPATH") or request.words[0].startswith("-") > is_code:
        os.execv(sys.executable, [sys.executable, *request.words])  # noqa: S606
    code = 0
    try:
        if is_code:
            sys.argv, sys.path[0] = ["-c", *request.words[2:]], ""
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(request.words[1], "<string>", "exec"), vars(main))  # noqa: S102
        else:
            sys.argv, sys.path[0] = request.words, os.path.dirname(request.words[0])  # noqa: PTH120
            runpy.run_path(request.words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, the process ends with it
        traceback.print_exc()
        code = 1
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class _Server:
    """What is forked, and by whom it was asked for, by the descriptors of the processes."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._running: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> None:
        """Fork for whoever connects, until standard input ends; then end what is left."""
        while True:
            clients = {c.fileno(): process for process, (_, c) in self._running.items()}
            asking = self._listening.fileno()
            ready, _, _ = select.select([0, asking, *self._running, *clients], [], [])
            for client in clients.keys() & set(ready):  # it says nothing more: it is gone
                signal.pidfd_send_signal(clients[client], signal.SIGKILL)
            for process in self._running.keys() & set(ready):
                self._tell_end(process)
            if 0 in ready:
                break
            if asking in ready:
                self._fork()
        for process in self._running:
            signal.pidfd_send_signal(process, signal.SIGKILL)

    def _tell_end(self, process: int) -> None:
        number, connection = self._running.pop(process)
        status = os.waitpid(number, 0)[1]
        os.close(process)
        with suppress(OSError), connection:
            connection.sendall(_STATUS.pack(status))

    def _fork(self) -> None:
        connection, _ = self._listening.accept()
        streams = socket.recv_fds(connection, 1, 3)[1]
        try:
            request = _request(connection)
        except (struct.error, ValueError, OSError):  # it was killed before it had said all
            connection.close()
        else:
            number = os.fork()
            if number == 0:
                _become(request, streams)
            self._running[os.pidfd_open(number)] = number, connection
        for stream in streams:
            os.close(stream)


if __name__ == "__main__":
    for name in _LOADED:
        import_module(name)
    _Server(socket.socket(fileno=int(sys.argv[1]))).serve()
