"""Hostile files: models, inputs, labels, records, logs and images that lie about their content."""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from bench.attacks.attack import Attack, Command
from bench.attacks.hostile_models import MODELS, Make, loop, saved
from bench.attacks.models import drawn, save
from halfwise.emulation.budget import REPEATING_SECONDS
from halfwise.memory import available
from halfwise.records import replace

WHOLE, MODEL, INPUTS = "whole.onnx", "model.onnx", "x.npz"
_GIVEN = ("--inputs", INPUTS)
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "lint": ("lint", MODEL),
    "verify": ("verify", MODEL, MODEL, *_GIVEN),
    "candidate": ("verify", WHOLE, MODEL, *_GIVEN),
    "observe": ("observe", MODEL, *_GIVEN),
    "fix": ("fix", MODEL, *_GIVEN, "-o", "run"),
    "start": ("fix", WHOLE, "--start-from", MODEL, *_GIVEN, "-o", "run"),
    "compare": ("compare", MODEL, "--b", "ort:optimised", *_GIVEN),
}
"""Commands that read a model."""
READERS: Mapping[str, tuple[str, ...]] = {
    "inputs": ("verify", WHOLE, WHOLE, "--inputs", "{}"),
    "held out": ("fix", WHOLE, *_GIVEN, "--heldout", "{}", "-o", "run"),
    "recorded": ("verify", WHOLE, "{}", *_GIVEN),
    "labels": ("verify", WHOLE, WHOLE, *_GIVEN, "--metric", "top1", "--labels", "{}"),
    "compared": ("diagnose", WHOLE, *_GIVEN, "--inputs-b", "{}", "-o", "run"),
    "expected": ("diagnose", WHOLE, "--expected", "{}", *_GIVEN, "-o", "run"),
}
"""Commands that read data."""
ANY = (0, 2, 3, 6, 7, 10)
_GB = 1 << 30


def _npy(shape: str, kind: str = "'<f4'", content: bytes = bytes(192)) -> bytes:
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + content


_HEADERS: Mapping[str, bytes] = {
    "2^40 samples": _npy(f"({1 << 40}, 1, 8)"),
    "2^63 samples": _npy(f"({1 << 63}, 1, 8)"),
    "samples of 5000 digits": _npy(f"({'9' * 5000}, 1, 8)"),
    "minus six samples": _npy("(-6, 1, 8)"),
    "True samples": _npy("(True, 1, 8)"),
    "no element in 2^40 samples": _npy(f"({1 << 40}, 0, 8)", content=b""),
    "no samples": _npy("(0, 1, 8)", content=b""),
    "rank 2000": _npy(f"({'1, ' * 2000})"),
    "brackets": _npy("(" * 9000 + ")" * 9000),
    "texts of 4 GB": _npy("(6, 1, 8)", f"'<U{10**9}'"),
    "a type of fields": _npy("(6, 1, 8)", "[('a', '<f4')]"),
    "objects": _npy("(6, 1, 8)", "'|O'"),
    "a header of 4 GB": b"\x93NUMPY\x02\0" + b"\xff" * 4 + bytes(100),
    "another version": b"\x93NUMPY\x09\0" + bytes(100),
    "no array": b"hello",
}


def _archived(content: bytes, name: bytes = b"x.npy", flags: int = 0) -> bytes:
    """Return a `.zip` of one stored member, whose name may be any bytes."""
    sizes = struct.pack("<III", zlib.crc32(content), len(content), len(content))
    both = struct.pack("<HHHHH", 20, flags, 0, 0, 0)[:10] + sizes + struct.pack("<HH", len(name), 0)
    local = b"PK\3\4" + both + name + content
    entry = b"PK\1\2" + struct.pack("<H", 20) + both + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(local), 0)
    return local + entry + b"PK\5\6" + end


@cache  # each takes seconds to make
def _bomb(member: str = "x.npy") -> bytes:
    """Return a `.npz` of 4 MB that holds 4 GB."""
    block, content = bytes(1 << 24), io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open(member, "w", force_zip64=True) as stream:
            stream.write(_npy(f"({1 << 27}, 1, 8)", content=b""))
            for _ in range(256):
                stream.write(block)
        if member != "x.npy":
            archive.writestr("x.npy", _npy("(6, 1, 8)"))
    return content.getvalue()


def _many(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number}.npy", _npy("(6, 1, 8)"))


def _truncated(content: bytes, nbytes: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)
        os.truncate(path, nbytes)

    return write


def _held(content: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(content), None)[1]


def _polygraphy(content: object) -> bytes:
    if isinstance(content, bytes):
        content = base64.b64encode(content).decode()
    return json.dumps([{"x": {"array": content, "polygraphy_class": "ndarray"}}]).encode()


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


_KINDS = ("x.npz", "x.npy", "x.json")
DATA: Mapping[str, tuple[str, Callable[[Path], None]]] = {
    **{f"npz: {n}": ("d.npz", _held(_archived(c))) for n, c in _HEADERS.items()},
    **{f"npy: {n}": ("d.npy", _held(c)) for n, c in _HEADERS.items()},
    **{f"json: {n}": ("d.json", _held(_polygraphy(c))) for n, c in _HEADERS.items()},
    **{f"a pipe for {kind}": (f"d{kind[1:]}", os.mkfifo) for kind in _KINDS},
    **{
        f"a link to a device for {kind}": (
            f"d{kind[1:]}",
            lambda path: path.symlink_to("/dev/zero"),
        )
        for kind in _KINDS
    },
    **{
        f"a circle of links for {kind}": (f"d{kind[1:]}", lambda path: path.symlink_to(path.name))
        for kind in _KINDS
    },
    "a bomb": ("d.npz", lambda path: (path.write_bytes(_bomb()), None)[1]),
    "a bomb beside the input": (
        "d.npz",
        lambda path: (path.write_bytes(_bomb("zzz.npy")), None)[1],
    ),
    "20,000 arrays": ("d.npz", _many),
    "no arrays": ("d.npz", lambda path: zipfile.ZipFile(path, "w").close()),
    "a name of no text": ("d.npz", _held(_archived(_npy("(6, 1, 8)"), b"\xff\xfe.npy"))),
    "a name of no UTF-8": ("d.npz", _held(_archived(_npy("(6, 1, 8)"), b"\xff\xfe.npy", 0x800))),
    "a name of half a pair": (
        "d.npz",
        _held(_archived(_npy("(6, 1, 8)"), b"\xed\xa0\x80.npy", 0x800)),
    ),
    "a name with a NUL": ("d.npz", _held(_archived(_npy("(6, 1, 8)"), b"x\0y.npy"))),
    "a name with colours": ("d.npz", _held(_archived(_npy("(6, 1, 8)"), b"\x1b[31m.npy"))),
    "a name of 60,000 letters": (
        "d.npz",
        _held(_archived(_npy("(6, 1, 8)"), b"x" * 60_000 + b".npy")),
    ),
    "1 TB of samples": ("d.npy", _truncated(_npy(f"({1 << 35}, 1, 8)", content=b""), 1 << 40)),
    "64 GB in a sample": ("d.npy", _truncated(_npy(f"(6, 1, {1 << 31})", content=b""), 1 << 36)),
    "text beyond the memory": ("d.json", _truncated(b" ", max(8 * _GB, available() or 0))),
    "brackets": ("d.json", _held(b"[" * 200_000)),
    "braces": ("d.json", _held(b'{"x":' * 200_000)),
    "10,000 digits": ("d.json", _held(b'[{"x":' + b"9" * 10_000 + b"}]")),
    "half a pair": ("d.json", _held(b'[{"\\ud800": 3}]')),
    "half a pair, raw": ("d.json", _held(b'[{"\xed\xa0\x80": 3}]')),
    "a number for an array": ("d.json", _held(_polygraphy(3))),
    "an object without its array": ("d.json", _held(b'[{"x":{"polygraphy_class":"ndarray"}}]')),
    "a class that is a list": ("d.json", _held(b'[{"x":{"polygraphy_class":["a"]}}]')),
    "an infinity": ("d.json", _held(b'[{"x":1e999}]')),
    "another encoding": ("d.json", _held("[]".encode("utf-16"))),
}
"""Data by its fault: the file's name, and the function that writes it."""

LABELS: Mapping[str, tuple[str, Callable[[Path], None]]] = {
    "10,000 digits": ("l.json", _held(b"[" + b"9" * 10_000 + b"]")),
    "1e999": ("l.json", _held(b"[1e999, 1e999, 1e999, 1e999, 1e999, 1e999]")),
    "brackets": ("l.json", _held(b"[" * 10**6)),
    "half a pair": ("l.json", _held(b'["\\ud800", "a", "b", "c", "d", "e"]')),
    "a long cell": ("l.csv", _held(b"a" * 200_000)),
    "NULs": ("l.csv", _held(b"\0\n" * 6)),
    "8 GB": ("l.json", _truncated(b"[1", 8 * _GB)),
    "a pipe": ("l.json", os.mkfifo),
    "lists": ("l.json", _held(b'[[], {}, null, "a", 1e999, [[[]]]]')),
}
RECORDS: Mapping[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a link to a device": _device,
    "a circle of links": lambda path: path.symlink_to(path.name),
    "a folder": lambda path: path.mkdir(),
    "brackets": _held(b"[" * 10**6),
    "10,000 digits": _held(b'{"schema_version":' + b"9" * 10_000 + b"}"),
    "a million letters": _held(b'{"schema_version":"' + b"a" * 10**6 + b'"}'),
    "half a pair": _held(b'{"schema_version":"\\ud800"}'),
    "8 GB": _truncated(b"{", 8 * _GB),
    "another encoding": _held("{}".encode("utf-16")),
}
LOGS: Mapping[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a link to a device": _device,
    "a line of 100 MB": _held(b"[TRT] [E] " + b"a" * 10**8),
    "half a pair": _held(b"[TRT] [E] node \xed\xa0\x80 (x)\n"),
}


def _given(folder: Path) -> None:
    weights = {"w": drawn(8, 8)}
    save(folder / WHOLE, "g (float[1, 8] x) => (float[1, 8] y) { y = MatMul(x, w) }", weights)
    np.savez(folder / INPUTS, x=drawn(8, 1, 8))


def _attack(
    name: str,
    arguments: tuple[str, ...],
    make: Make,
    codes: tuple[int, ...] = ANY,
    *,
    quick: bool = False,
) -> Attack:
    def command(folder: Path) -> Command:
        _given(folder)
        make(folder)
        return Command(arguments)

    return Attack(name, command, codes, quick=quick)


def _placed(file: str, write: Callable[[Path], None]) -> Make:
    def make(folder: Path) -> None:
        (folder / file).parent.mkdir(exist_ok=True)
        write(folder / file)

    return make


def _slow(name: str) -> bool:
    return "bomb" in name or "20,000" in name or "2 GB" in name or "100 MB" in name


def _all() -> list[Attack]:
    attacks = [
        # One of 32 is quick: each command, and many faults by some command.
        _attack(f"{reader} a model: {name}", line, make, quick=not (n + 3 * m) % 32)
        for m, (name, make) in enumerate(MODELS.items())
        for n, (reader, line) in enumerate(COMMANDS.items())
    ]
    for n, (name, (file, write)) in enumerate(DATA.items()):
        for m, (reader, words) in enumerate(READERS.items()):
            line = tuple(word.format(file) for word in words)
            quick = not (n + m) % 24 and not _slow(name)
            attacks.append(_attack(f"{reader}: {name}", line, _placed(file, write), quick=quick))
    for name, (file, write) in LABELS.items():
        line = tuple(word.format(file) for word in READERS["labels"])
        attacks.append(_attack(f"labels alone: {name}", line, _placed(file, write)))
    for name, write in RECORDS.items():
        for words in (("report", "run"), ("export", "run", "--as", "python")):
            make = _placed("run/run.json", write)
            attacks.append(_attack(f"{words[0]} a record: {name}", words, make, (2, 3, 7)))
    for name, write in LOGS.items():
        attacks.append(_attack(f"a log: {name}", ("explain-log", "l"), _placed("l", write)))
    for reader, line in COMMANDS.items():
        if reader not in ("lint", "start"):
            endless = (*line, "--budget", "run-timeout=2")
            for name, trips in (("never", None), ("after 2^62 trips", 1 << 62)):
                make = saved(loop(trips))
                told = f"{reader} a Loop that ends {name}"
                attacks.append(_attack(told, endless, make, (6, 10), quick=reader == "observe"))
    return [*_usual_limit(), *attacks]


def _usual_limit() -> Iterator[Attack]:
    """Yield attacks that end by the default limit; they wait most of the time."""
    told = (f"it is ended at {REPEATING_SECONDS:g} s", f"longer than {REPEATING_SECONDS:g} s")
    diagnosed = ("diagnose", MODEL, *_GIVEN, "-o", "run")
    for reader, line in {**COMMANDS, "diagnose": diagnosed}.items():
        if reader not in ("lint", "start"):
            name = f"{reader} a Loop that never ends, by the usual limit"
            yield replace(_attack(name, line, saved(loop(None)), (6,)), says=told)


ATTACKS = _all()
