"""Records a worker's answers, and replays them with one fault in one frame.

    replay.py record FILE COMMAND …    runs a worker's command and records its frames
    replay.py play FILE FAULT          replays FILE with the fault in the file FAULT

halfwise appends the bootstrap that it gives every worker; its source is read but not run. Needs
only the standard library and the worker's own module.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).parents[2] / "src" / "halfwise" / "backends" / "tensorrt" / "worker.py"
_PAUSE_SECONDS = 0.2
LARGE = {
    "@deep@": "[" * 100_000 + "]" * 100_000,
    "@huge@": "9" * 10_000,
    "@long@": '"' + "x" * 100_000 + '"',
    "@longer@": '"' + "m" * 1_000_000 + '"',
    "@many@": "[" + '"x",' * 10_000 + '"x"]',
    "@crowded@": "[" + "[]," * 5_000_000 + "[]]",
}
"""JSON that faults name, as a string in its place."""

Frame = dict[str, Any]


def _frames() -> Any:
    """Return the worker's module from this checkout."""
    spec = spec_from_file_location("halfwise_worker", _WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _source_bytes() -> int:
    """Return how many bytes of source the bootstrap reads."""
    found = re.search(r"\.read\((\d+)\)", sys.argv[-1])
    assert found is not None
    return int(found[1])


def record(path: Path, command: list[str]) -> None:
    """Pass everything between halfwise and a worker, and record the answers."""
    worker = _frames()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    asked: dict[int, str] = {}
    rest = _source_bytes()

    def pass_requests() -> None:
        nonlocal rest
        unpacker = worker.Unpacker()
        while data := os.read(0, 1 << 20):
            for header, _, _ in unpacker.feed(data[rest:]):
                if header is not None:
                    asked[header["id"]] = header["op"]
            rest = max(0, rest - len(data))
            process.stdin.write(data)
        process.stdin.close()

    threading.Thread(target=pass_requests, daemon=True).start()
    answers: dict[str, list[list[Frame]]] = defaultdict(list)
    begun: set[int] = set()
    unpacker = worker.Unpacker()
    while data := os.read(process.stdout.fileno(), 1 << 20):
        for header, payload, _ in unpacker.feed(data):
            number = None if header is None else header.get("id")
            if number in asked:
                own = answers[asked[number]]
                if number not in begun:
                    begun.add(number)
                    own.append([])
                own[-1].append({"header": header, "payload": base64.b64encode(payload).decode()})
        os.write(1, data)
        # Written at once: halfwise may end this process at any time.
        path.write_text(json.dumps(answers))
    sys.exit(process.wait())


class _Player:
    """Answers requests from a record."""

    def __init__(self, recorded: dict[str, list[list[Frame]]], fault: dict[str, Any]) -> None:
        self.recorded, self.fault = recorded, fault
        self.worker = _frames()
        self.counts: Counter[str] = Counter()

    def serve(self) -> None:
        left = _source_bytes()
        while left:
            left -= len(os.read(0, left))
        unpacker = self.worker.Unpacker()
        while data := os.read(0, 1 << 20):
            for header, _, _ in unpacker.feed(data):
                if header is not None:
                    self._answer(header)

    def _answer(self, request: Frame) -> None:
        op = request["op"]
        known = self.recorded.get(op) or [[{"header": {"kind": "result"}, "payload": ""}]]
        frames = known[min(self.counts[op], len(known) - 1)]
        for index, frame in enumerate(frames):
            header = {**frame["header"], "id": request["id"]}
            if header.get("missing"):  # hashes depend on the version of protobuf
                header["missing"] = request["hashes"]
            payload = base64.b64decode(frame["payload"])
            here = (op, min(self.counts[op], len(known) - 1), index)
            if here == (self.fault["op"], self.fault["nth"], self.fault["frame"]):
                for piece in self._faulty(header, payload):
                    _write(piece)
            else:
                _write(self.worker.pack(header, payload))
        self.counts[op] += 1

    def _faulty(self, header: Frame, payload: bytes) -> Iterator[bytes]:
        """Yield what is sent instead of a frame."""
        fault, whole = self.fault, self.worker.pack(header, payload)
        kind = fault["kind"]
        if kind == "endless":
            yield from self._endless(header, payload, fault["what"])
        elif kind == "cut":
            yield whole[: int(len(whole) * fault["share"])]
        elif kind == "noise":
            yield bytes.fromhex(fault["hex"]) * fault["times"]
            yield whole
        elif kind == "twice":
            yield whole * 2
        elif kind != "exit":
            yield self._other_frame(header, payload)
        if fault.get("exit") is not None:
            sys.exit(fault["exit"])

    def _other_frame(self, header: Frame, payload: bytes) -> bytes:
        fault = self.fault
        if fault["kind"] == "payload":
            return bytes(self.worker.pack(header, _other(payload, fault["how"])))
        if fault["kind"] == "lengths":
            return self._announced(header, payload, *fault["lengths"])
        if fault["kind"] == "raw header":
            text = bytes.fromhex(fault["hex"])
            text = LARGE[text.decode()].encode() if text[:1] == b"@" else text
            return bytes(self.worker.MAGIC + self.worker.LENGTHS.pack(len(text), 0) + text)
        if fault["kind"] == "instead":
            return self._packed({**fault["header"], "id": header["id"]}, payload)
        return self._packed(changed(header, fault), payload)

    def _endless(self, header: Frame, payload: bytes, what: str) -> Iterator[bytes]:
        whole = self.worker.pack(header, payload)
        for byte in whole if what == "byte by byte" else ():
            time.sleep(_PAUSE_SECONDS)
            yield bytes((byte,))
        beats = {
            "log": {"kind": "log", "severity": "info", "text": "still here"},
            "progress": {"kind": "progress", "phase": "p", "done": 1, "total": 2},
            "started": {"kind": "started"},
            "waiting": {"kind": "waiting"},
        }
        if what == "waiting once":
            yield self.worker.pack({"kind": "waiting", "id": header["id"]})
        while what in beats:
            time.sleep(_PAUSE_SECONDS / 10)
            yield self.worker.pack({**beats[what], "id": header["id"]})
        while what == "noise":
            yield b"y\n" * 5000
        while what == "payload":
            head = self._announced(header, b"", None, 1 << 60)
            yield head + bytes(1 << 20)
        while what != "byte by byte":
            time.sleep(_PAUSE_SECONDS)  # silence

    def _packed(self, header: Frame, payload: bytes) -> bytes:
        text = json.dumps(header)
        for name, large in LARGE.items():
            text = text.replace(json.dumps(name), large)
        data = text.encode()
        lengths = self.worker.LENGTHS.pack(len(data), len(payload))
        return bytes(self.worker.MAGIC + lengths + data + payload)

    def _announced(
        self, header: Frame, payload: bytes, header_bytes: int | None, payload_bytes: int | None
    ) -> bytes:
        text = json.dumps(header).encode()
        lengths = self.worker.LENGTHS.pack(
            len(text) if header_bytes is None else header_bytes,
            len(payload) if payload_bytes is None else payload_bytes,
        )
        return bytes(self.worker.MAGIC + lengths + text + payload)


def changed(header: Frame, fault: dict[str, Any]) -> Frame:
    """Return a header with the fault applied at its path: a value replaced, removed or added."""
    found: Frame = json.loads(json.dumps(header))
    *way, last = fault["path"]
    place: Any = found
    for step in way:
        place = place[step]
    if fault["kind"] == "delete":
        del place[last]
    elif fault["kind"] == "add":
        place[last]["unheard"] = 1
    else:
        place[last] = fault["value"]
    return found


def _other(payload: bytes, how: str) -> bytes:
    if how == "shorter":
        return payload[:-1]
    if how == "longer":
        return payload + b"\0"
    if how == "none":
        return b""
    if how == "far longer":
        return payload + bytes(64 << 20)
    return bytes(255 - byte for byte in payload)


def _write(data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(1, view) :]
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]), sys.argv[3:])
    else:
        told = json.loads(Path(sys.argv[2]).read_text())
        _Player(told, json.loads(Path(sys.argv[3]).read_text())).serve()
