"""What a version of TensorRT's Python bindings has, from its snapshot."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
VERSIONS = tuple(
    sorted((path.stem for path in FOLDER.glob("*.json")), key=lambda v: [*map(int, v.split("."))])
)
MEMBERS = ("methods", "settable", "read_only", "constants")


@cache
def load(version: str) -> "Api":
    return Api(version, json.loads((FOLDER / f"{version}.json").read_text(encoding="utf-8")))


@dataclass(frozen=True, eq=False)
class Api:
    version: str
    raw: dict[str, Any]

    @property
    def module(self) -> set[str]:
        """Names that the module has."""
        kinds = ("enums", "classes", "functions", "constants")
        return {name for kind in kinds for name in self.raw[kind] if "." not in name} | {
            "__version__"
        }

    @cache  # noqa: B019 (there are no more of these than files)
    def members(self, name: str) -> frozenset[str]:
        """Names that a class or an enumeration has, inherited ones included.

        What only can be overridden is not on the class, and not here.
        """
        if name in self.raw["enums"]:
            return frozenset(self.raw["enums"][name])
        of = self.raw["classes"][name]
        own = {member for kind in MEMBERS for member in of.get(kind, ())} | {"__init__"}
        own |= {inner for outer, inner in self._nested if outer == name}
        bases = [base for base in of.get("bases", ()) if base in self.raw["classes"]]
        return frozenset(own).union(*map(self.members, bases))

    @cached_property
    def _nested(self) -> list[tuple[str, str]]:
        return [(outer, inner) for outer, _, inner in (e.partition(".") for e in self.raw["enums"])]

    def overridable(self, name: str) -> set[str]:
        """Names of the methods that a subclass may define for TensorRT to call."""
        of = self.raw["classes"][name]
        return set(of.get("overrides", ())) | set(of.get("methods", ()))

    @cached_property
    def anywhere(self) -> frozenset[str]:
        """Every name of the module and of any class or enumeration."""
        names = set(self.module)
        for name in (*self.raw["classes"], *self.raw["enums"]):
            names |= self.members(name)
        for name in self.raw["classes"]:
            names |= self.overridable(name)
        # Of every member of an enumeration.
        return frozenset(names | {"name", "value"})


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str
    optional: bool


@dataclass(frozen=True)
class Signature:
    parameters: tuple[Parameter, ...]
    result: str


@cache
def signatures(text: str) -> tuple[Signature, ...]:
    """Read `(self: A, b: int = 0) -> C | (self: A) -> D`."""
    return tuple(_signature(one) for one in re.split(r" \| (?=\()", text) if one)


def _signature(text: str) -> Signature:
    end = _closing(text)
    result = text[end + 1 :].removeprefix(" -> ")
    parameters = []
    for part in _split(text[1:end]):
        name, _, rest = part.partition(":")
        kind, equals, _ = rest.partition(" = ")
        parameters.append(Parameter(name.strip(), plain(kind), bool(equals)))
    return Signature(tuple(parameters), plain(result))


def _closing(text: str) -> int:
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place
    raise ValueError(text)


def _split(text: str) -> Iterator[str]:
    depth = start = 0
    for place, letter in enumerate(text):
        depth += (letter in "([<") - (letter in ")]" or (letter == ">" and text[place - 1] != "-"))
        if letter == "," and not depth:
            yield text[start:place]
            start = place + 1
    if text[start:].strip():
        yield text[start:]


def plain(kind: str) -> str:
    """Return a type as Python has it: `nvinfer1::IEngineInspector` is `IEngineInspector`."""
    kind = re.sub(r"\b(?:\w+::)+", "", kind.strip())
    kind = re.sub(r"\b(?:typing|typing_extensions|collections\.abc)\.", "", kind)
    kind = re.sub(r"\b(?:List|Sequence)\b", "list", kind)
    kind = re.sub(r"\bSupports(Int|Float)\b", lambda found: found[1].lower(), kind)
    return {"Buffer": "buffer", "Severity": "ILogger.Severity"}.get(kind, kind)
