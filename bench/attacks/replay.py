"""Records a worker's answers, and replays them with one fault at the end of one answer.

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
from collections import Counter, defaultdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).parents[2] / "src/halfwise/tensorrt/worker.py"

Frame = dict[str, Any]
Fault = dict[str, Any]


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
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    asked: dict[int, str] = {}

    def pass_requests() -> None:
        process.stdin.write(sys.stdin.buffer.read(_source_bytes()))
        process.stdin.flush()
        while frame := worker.read_frame(sys.stdin.buffer):
            header, payload = frame
            asked[header["id"]] = header["op"]
            process.stdin.write(worker.pack(header, payload))
            process.stdin.flush()
        process.stdin.close()

    threading.Thread(target=pass_requests, daemon=True).start()
    answers: dict[str, list[list[Frame]]] = defaultdict(list)
    begun: set[int] = set()
    while frame := worker.read_frame(process.stdout):
        header, payload = frame
        number = header.get("id")
        if number in asked:
            own = answers[asked[number]]
            if number not in begun:
                begun.add(number)
                own.append([])
            own[-1].append({"header": header, "payload": base64.b64encode(payload).decode()})
        _write(worker.pack(header, payload))
        # Written at once: halfwise may end this process at any time.
        path.write_text(json.dumps(answers))
    sys.exit(process.wait())


class _Player:
    """Answers requests from a record."""

    def __init__(self, recorded: dict[str, list[list[Frame]]], fault: Fault) -> None:
        self.recorded, self.fault = recorded, fault
        self.worker = _frames()
        self.counts: Counter[str] = Counter()

    def serve(self) -> None:
        sys.stdin.buffer.read(_source_bytes())
        while frame := self.worker.read_frame(sys.stdin.buffer):
            self._answer(frame[0])

    def _answer(self, request: Frame) -> None:
        op = request["op"]
        known = self.recorded.get(op) or [[{"header": {"kind": "result"}, "payload": ""}]]
        *before, end = known[min(self.counts[op], len(known) - 1)]
        for frame in (*before, end):
            header = {**frame["header"], "id": request["id"]}
            if header.get("missing"):  # hashes depend on the version of protobuf
                header["missing"] = request["hashes"]
            payload = base64.b64decode(frame["payload"])
            if frame is end and not self.counts[op] and op == self.fault.get("op"):
                self._send_faulty(header, payload)
            else:
                _write(self.worker.pack(header, payload))
        self.counts[op] += 1

    def _send_faulty(self, header: Frame, payload: bytes) -> None:
        """Send what comes instead of the end of an answer."""
        kind, fault, pack = self.fault["kind"], self.fault, self.worker.pack
        if kind == "cut":
            _write(pack(header, payload)[:-1])
        elif kind == "payload":
            _write(pack(header, payload + b"\0"))
        elif kind == "text":
            text = fault["text"].encode()
            _write(self.worker.MAGIC + self.worker.LENGTHS.pack(len(text), 0) + text)
        elif kind == "instead":
            _write(pack({**fault["header"], "id": header["id"]}, payload))
        elif kind != "exit":
            _write(pack(changed(header, fault), payload))
        if "status" in fault:
            sys.exit(fault["status"])


def changed(header: Frame, fault: Fault) -> Frame:
    """Return a header with the value at the fault's path replaced or removed."""
    found: Frame = json.loads(json.dumps(header))
    *way, last = fault["path"]
    place: Any = found
    for step in way:
        place = place[step]
    if fault["kind"] == "delete":
        del place[last]
    else:
        place[last] = fault["value"]
    return found


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
