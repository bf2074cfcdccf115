"""The fake TensorRT has nothing that the real bindings of its version lack."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
_VERSIONS = ("8.6.1", "10.0.1", "10.16.1", "11.4.0")
_DESCRIBE = """
import inspect, json, tests.fake_tensorrt.api as trt
found = {"version": trt.__version__, "names": list(trt.__all__), "classes": {}, "enums": {}}
for name in trt.__all__:
    kind = getattr(trt, name)
    if not isinstance(kind, type):
        continue
    if hasattr(kind, "__members__"):
        found["enums"][name] = {key: int(value) for key, value in kind.__members__.items()}
        continue
    found["classes"][name] = {
        key: list(inspect.signature(value).parameters) if inspect.isfunction(value) else None
        for key, value in vars(kind).items() if not key.startswith("_")
    }
print(json.dumps(found))
"""


def described(version: str) -> dict[str, Any]:
    """Return what the fake has, from a process of its own."""
    paths = (ROOT / "tests" / "fake_tensorrt", ROOT, ROOT / "src")
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-c", _DESCRIBE],
        env={**environment, "HALFWISE_FAKE_TENSORRT": version},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def parameters(signature: str) -> list[list[str]]:
    """Return the names of parameters of each overload: "(self: A, b: int) -> C | (…) -> …"."""
    found = []
    for overload in signature.split(" | ("):
        inside, depth, names, word = overload.partition(") ->")[0].lstrip("("), 0, [], ""
        for letter in inside + ",":
            depth += (letter in "[<(") - (letter in "]>)")
            if letter == "," and depth == 0:
                names.append(word.partition(":")[0].partition("=")[0].strip())
                word = ""
            else:
                word += letter
        found.append([name for name in names if name])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("version", _VERSIONS)
def test_nothing_that_the_version_lacks(version: str) -> None:
    snapshot = next((ROOT / "tests" / "bindings").glob(f"{version}*.json"))
    real = json.loads(snapshot.read_text())
    fake = described(version)
    assert fake["version"] == version
    for name, members in fake["enums"].items():
        assert members == real["enums"][name if name != "Severity" else "ILogger.Severity"]
    for name, attributes in fake["classes"].items():
        entry = real["classes"][name]
        known = {**entry.get("methods", {})}
        for attribute, names in attributes.items():
            if names is None or attribute not in known:
                continue
            # What the fake leaves out at the end, nobody can give it.
            beginnings = [overload[: len(names)] for overload in parameters(known[attribute])]
            assert names in beginnings, (name, attribute, names, known[attribute])


def test_parameters_of_overloads() -> None:
    text = "(self: A, b: List[int, int] = <E.X: 0>, c: int) -> B | (self: A, d: str = None) -> B"
    assert parameters(text) == [["self", "b", "c"], ["self", "d"]]
