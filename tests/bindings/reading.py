"""Reads, without running it, which attributes a source touches, and under which guards.

A guard is what makes sure that an attribute is there: `hasattr(x, "name")`, or that
`getattr(x, "name", None)` is not None, in an `if` or before it returns; and all guards under which
a function is called. What a source can promise in no such way is told as `promises`: the text of a
condition, and a name that every version where it holds has.
"""

import ast
import builtins
import collections
import ctypes
import hashlib
import importlib
import io
import os
import re
import select
import struct
import threading
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.bindings.api import Api

Name = tuple[str | None, str]
"""An attribute: of the module ("", name), of a class or enum, or of anything (None, name)."""
Guards = frozenset[Name]
MODULES = {"trt", "tensorrt"}
_ASKS = {"hasattr", "getattr"}
_OWN = {"__init__"}
_LEAVES = ast.Return | ast.Raise | ast.Continue | ast.Break
_PYTHON = (
    *(value for value in vars(builtins).values() if isinstance(value, type)),
    *(collections.deque, struct.Struct, type(hashlib.sha256()), type(threading.Lock())),
    *(
        type(select.poll()),
        io.BufferedRandom,
        io.TextIOWrapper,
        os.stat_result,
        os.DirEntry,
        types.ModuleType,
    ),
    *(ctypes.c_int, type(ctypes.c_int), type(ctypes.create_string_buffer(1)), ctypes.CDLL),
)
_FOREIGN = re.compile(r"(cu|nvml)[A-Z]\w+|prctl")
"""Functions of C libraries, which ctypes reaches as attributes."""


@dataclass
class Reading:
    """What a source touches, calls and defines."""

    touched: list[tuple[int, Name, str, Guards]] = field(default_factory=list)
    """Line, attribute, function, guards."""
    asked: list[tuple[int, Name]] = field(default_factory=list)
    """Line and attribute that a guard asks for."""
    called: list[tuple[str, str, Guards]] = field(default_factory=list)
    """Function, the one that calls it, guards."""
    python: set[str] = field(default_factory=set)
    """Attributes that are Python's or the source's own."""
    overrides: list[tuple[int, str, str]] = field(default_factory=list)
    """Line, class of TensorRT, and method that a subclass defines."""


def read(source: str, promises: Mapping[str, str]) -> Reading:
    tree = ast.parse(source)
    reading = Reading(python=_vocabulary(tree))
    _Reader(reading, promises).block(tree.body, frozenset())
    return reading


def complaints(source: str, apis: Iterable[Api], promises: Mapping[str, str]) -> list[str]:
    """Return a line for every attribute that is not there where it is touched."""
    reading, apis = read(source, promises), tuple(apis)
    inherited = _inherited(reading)
    found = []
    for line, name, function, guards in reading.touched:
        owner, attribute = name
        reached = [a for a in apis if all(_has(a, g) for g in guards | inherited[function])]
        lacking = [a.version for a in reached if not _has(a, name)]
        own = owner is None and (attribute in reading.python or _FOREIGN.fullmatch(attribute))
        own = own or attribute == "__members__"  # the snapshots of enumerations are made of it
        if lacking and not own:
            where = ", ".join(lacking) if any(_has(a, name) for a in apis) else "any version"
            found.append(f"line {line}: {_shown(name)} is not in {where}")
    for line, name in reading.asked:
        if not any(_has(a, name) for a in apis) and name[1] not in reading.python:
            found.append(f"line {line}: no version has {_shown(name)}")
    for line, base, method in reading.overrides:
        having = [a for a in apis if base in a.raw["classes"]]
        calls = {name for name, _, _ in reading.called}
        if method not in calls and not any(method in a.overridable(base) for a in having):
            found.append(f"line {line}: nobody calls {base}.{method}")
    return found


def _shown(name: Name) -> str:
    return ".".join(part for part in name if part)


def _has(api: Api, name: Name) -> bool:
    owner, attribute = name
    if owner is None:
        return attribute in api.anywhere
    if not owner:
        return attribute in api.module
    known = owner in api.raw["classes"] or owner in api.raw["enums"]
    return known and attribute in api.members(owner)


def _inherited(reading: Reading) -> dict[str, Guards]:
    """Return the guards under which every call of a function stands."""
    functions = {function for _, _, function, _ in reading.touched}
    functions |= {name for call in reading.called for name in call[:2]}
    sites = {name: [c for c in reading.called if c[0] == name != c[1]] for name in functions}
    found: dict[str, Guards] = {name: frozenset() for name in functions}
    while True:  # guards only grow; each round carries them one call further
        before = dict(found)
        for name in functions:
            under = [guards | found[caller] for _, caller, guards in sites[name]]
            found[name] = frozenset.intersection(*under) if under else frozenset()
        if found == before:
            return found


def _vocabulary(tree: ast.Module) -> set[str]:
    found = {name for kind in _PYTHON for name in dir(kind)} | set(dir(os.path))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in MODULES:
                    found |= set(dir(importlib.import_module(alias.name)))
    return found


class _Reader:
    """Walks a source with the guards that hold at each place."""

    def __init__(self, reading: Reading, promises: Mapping[str, str]) -> None:
        self.reading, self.promises = reading, promises
        self.function = ""
        self.aliases: dict[str, Name] = {}

    def block(self, statements: list[ast.stmt], guards: Guards) -> None:
        for statement in statements:
            self.visit(statement, guards)
            if isinstance(statement, ast.If):
                for leaving, holds in ((statement.body, False), (statement.orelse, True)):
                    if leaving and isinstance(leaving[-1], _LEAVES):
                        guards |= self.implied(statement.test, holds)

    def visit(self, node: ast.AST, guards: Guards) -> None:
        if isinstance(node, ast.If | ast.IfExp):
            self.visit(node.test, guards)
            for part, holds in ((node.body, True), (node.orelse, False)):
                self.either(part, guards | self.implied(node.test, holds))
        elif isinstance(node, ast.BoolOp):
            for value in node.values:
                self.visit(value, guards)
                guards |= self.implied(value, isinstance(node.op, ast.And))
        elif isinstance(node, ast.FunctionDef):
            self.define(node, guards)
        else:
            self.note(node, guards)
            for _, part in ast.iter_fields(node):
                self.either(part, guards)

    def either(self, part: object, guards: Guards) -> None:
        """Visit a node, a block, or a list of other nodes."""
        if isinstance(part, ast.AST):
            self.visit(part, guards)
        elif isinstance(part, list) and part and isinstance(part[0], ast.stmt):
            self.block(part, guards)
        elif isinstance(part, list):
            for one in part:
                self.either(one, guards)

    def define(self, node: ast.FunctionDef, guards: Guards) -> None:
        """A function stands under the guards of its callers; an inner one, its outer's too."""
        outer, aliases = self.function, dict(self.aliases)
        if not outer:
            self.function = node.name
        self.block(node.body, guards)
        self.function, self.aliases = outer, aliases

    def note(self, node: ast.AST, guards: Guards) -> None:
        """Write down what this node alone touches, asks, calls or names."""
        if isinstance(node, ast.Assign):
            self.alias(node.targets[0], node.value)
        if isinstance(node, ast.ClassDef):
            self.subclass(node)
        if isinstance(node, ast.Attribute):
            name = self.chain(node)
            if name is None and not self.is_module(node):
                name = (None, node.attr)
            if name is not None:
                self.reading.touched.append((node.lineno, name, self.function, guards))
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            callee = node.attr if isinstance(node, ast.Attribute) else node.id
            self.reading.called.append((callee, self.function, guards))
        asked = self.asked(node)
        if asked is not None:
            self.reading.asked.append((getattr(node, "lineno", 0), asked))

    def subclass(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            name = self.chain(base)
            if name is not None:
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and method.name not in _OWN:
                        self.reading.overrides.append((method.lineno, name[1], method.name))

    def alias(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self.alias(one, other)
        elif isinstance(target, ast.Name):
            self.aliases.pop(target.id, None)
            name = self.chain(value) or self.asked(value)
            if name is not None:
                self.aliases[target.id] = name

    def is_module(self, node: ast.AST) -> bool:
        """Whether it is `trt`, `self.trt` or `self.trt()`."""
        if isinstance(node, ast.Call):
            node = node.func
        if isinstance(node, ast.Attribute):
            return node.attr in {"trt", "_trt"} and ast.unparse(node.value) == "self"
        return isinstance(node, ast.Name) and node.id in MODULES

    def chain(self, node: ast.AST) -> Name | None:
        """Return what `trt.BuilderFlag` and `trt.BuilderFlag.FP16` are, through aliases too."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        if self.is_module(node.value):
            return ("", node.attr)
        inner = self.chain(node.value)
        is_class = inner is not None and inner[0] == "" and inner[1][0].isupper()
        return (inner[1], node.attr) if inner is not None and is_class else None

    def asked(self, node: ast.AST) -> Name | None:
        """Return the attribute that `hasattr(x, "name")` or `getattr(x, "name", None)` asks for."""
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1
        ):
            return None
        of, name = node.args[:2]
        if node.func.id not in _ASKS or not isinstance(name, ast.Constant):
            return None
        if self.is_module(of):
            return ("", str(name.value))
        chain = self.chain(of)
        return (chain[1] if chain is not None and chain[0] == "" else None, str(name.value))

    def implied(self, test: ast.expr, holds: bool) -> Guards:
        """Return the guards that hold where `test` is true, or where it is false."""
        promised = self.promises.get(ast.unparse(test if holds else _negated(test)))
        if promised is not None:
            owner, _, attribute = promised.rpartition(".")
            return frozenset({(owner or None, attribute)})
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.implied(test.operand, not holds)
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == holds:
            return Guards().union(*(self.implied(value, holds) for value in test.values))
        if isinstance(test, ast.Compare) and ast.unparse(test.comparators[-1]) == "None":
            there = isinstance(test.ops[0], ast.IsNot) == holds
            name = self.asked(test.left) or self.chain(test.left)
            return frozenset({name} if there and name is not None else ())
        name = self.asked(test)
        return frozenset({name} if holds and name is not None else ())


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)
