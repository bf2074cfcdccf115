"""Write the public API of real TensorRT bindings to tests/bindings, one JSON file per version.

usage: python tools/tensorrt_bindings.py [--check] [VERSION ...]

The wheels come from PyPI (1 MB each); the libraries that they load are stand-ins, compiled from
tensorrt_stub.c. Needs pip, a C compiler and Python 3.11, the last one with a wheel of 8.6.1.
"""

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOTS = ROOT / "tests" / "bindings"
PACKAGES = {
    "1.7.1.116": "tensorrt_rtx_cu13_bindings",
    "8.6.1": "tensorrt_bindings",
    "10.0.1": "tensorrt_cu12_bindings",
    "10.16.1.11": "tensorrt_cu12_bindings",
    "11.4.0.106": "tensorrt_cu12_bindings",
}
MODULES = ("tensorrt_bindings", "tensorrt_rtx_bindings")
LIBRARIES = (
    *("libnvinfer", "libnvinfer_plugin", "libnvonnxparser", "libnvparsers"),
    *("libtensorrt_rtx", "libtensorrt_onnxparser_rtx"),
)


def main() -> int:
    """Write or compare the files; return 1 if a file differs from its wheel."""
    parser = argparse.ArgumentParser(description="Snapshots of the API of TensorRT's bindings")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="default: all of them")
    options = parser.parse_args()
    stale = []
    for version in options.versions or PACKAGES:
        path = SNAPSHOTS / f"{version}.json"
        text = snapshot(version)
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}\n")
    return int(bool(stale))


def snapshot(version: str) -> str:
    """Return the text of a version's file.

    Raises:
        subprocess.CalledProcessError: No wheel, no compiler, or the bindings do not import.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _unpack(version, place)
        _stand_ins(version.split(".", maxsplit=1)[0], place)
        # In another process: what one version loads would stay for the next. -P because this
        # script has the name of the module that it imports.
        listing = subprocess.run(
            [sys.executable, "-P", __file__, "describe"],
            env=os.environ | {"LD_LIBRARY_PATH": folder, "PYTHONPATH": folder},
            stdout=subprocess.PIPE,
            check=True,
        )
    return listing.stdout.decode()


def _unpack(version: str, place: Path) -> None:
    package = f"{PACKAGES[version]}=={version}"
    command = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([sys.executable, *command, package, "--dest", str(place)], check=True)
    for wheel in place.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)


def _stand_ins(major: str, place: Path) -> None:
    """Compile one stub library under the names of all libraries."""
    library = place / "stand_in.so"
    source = Path(__file__).with_name("tensorrt_stub.c")
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    for name in LIBRARIES:
        (place / f"{name}.so.{major}").symlink_to(library)


# ------------------------------------------------------------------- in a process of their own


def describe(module: ModuleType) -> dict[str, Any]:
    """Return the API: enums, classes, functions and constants, by qualified name."""
    api: dict[str, Any] = {"version": module.__version__}
    api |= {kind: {} for kind in ("enums", "classes", "functions", "constants")}
    for name, value in vars(module).items():
        if not name.startswith("_") and not isinstance(value, ModuleType):
            _add(api, name, value)
    return api


def _add(api: dict[str, Any], name: str, value: object) -> None:
    if isinstance(value, type) and hasattr(value, "__members__"):
        api["enums"][name] = {member: int(of) for member, of in value.__members__.items()}
    elif isinstance(value, type):
        api["classes"][name] = _class(value)
        for inner, of in vars(value).items():
            if isinstance(of, type) and not inner.startswith("_"):
                _add(api, f"{name}.{inner}", of)
    elif callable(value):
        api["functions"][name] = _signatures(value)
    else:
        api["constants"][name] = type(value).__name__


def _class(of: type) -> dict[str, Any]:
    """Return a class without inherited members.

    `overrides` are the methods that its docstring says to implement: no class has those of
    IOutputAllocator.
    """
    found: dict[str, Any] = {
        "bases": [base.__name__ for base in of.__bases__ if base.__module__ == of.__module__],
        "overrides": sorted(set(re.findall(r"def (\w+)\(self", of.__doc__ or "")) - {"__init__"}),
        "methods": {},
        "settable": {},
        "read_only": {},
        "constants": {},
    }
    for name, value in vars(of).items():
        if re.match(r"_pybind11|__pybind11|__(doc|module|dict|weakref|firstlineno)__", name):
            continue
        if isinstance(value, property):
            kind = "read_only" if value.fset is None else "settable"
            found[kind][name] = _signatures(value.fget).rpartition(" -> ")[2]
        elif isinstance(value, type):
            continue
        elif callable(value) or isinstance(value, staticmethod):
            signatures = _signatures(getattr(of, name))
            if signatures or name != "__init__":  # without one, it cannot be constructed
                found["methods"][name] = signatures
        elif not name.startswith("__"):
            found["constants"][name] = type(value).__name__
    return {key: value for key, value in found.items() if value}


def _signatures(function: object) -> str:
    """Return `(self: Builder, ...) -> INetworkDefinition`, overloads separated by ` | `."""
    text = function.__doc__ or ""
    if "Overloaded function." in text:
        found = re.findall(r"^\d+\. \w+(\(.*)$", text, flags=re.MULTILINE)
    else:
        found = re.findall(r"^\w*(\(.*\) -> .*)", text, flags=re.MULTILINE)[:1]
    if not found and inspect.isfunction(function):
        found = [str(inspect.signature(function))]
    return re.sub(r"\w+\.tensorrt(_rtx)?\.| at 0x[0-9a-f]+", "", " | ".join(found))


if __name__ == "__main__":
    if sys.argv[1:] == ["describe"]:
        found = describe(importlib.import_module(next(filter(importlib.util.find_spec, MODULES))))
        sys.stdout.write(json.dumps(found, indent=1, sort_keys=True) + "\n")
    else:
        sys.exit(main())
