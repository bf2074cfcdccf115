"""A module `tensorrt` that has what a version has, and not an attribute more.

Classes, methods and properties come from the snapshot of the real bindings. Arguments are checked
against the signatures, what is given back has the type that they tell, properties without a setter
cannot be set. What a test needs beyond that (a network of two layers, a build that fails) it says
in `answers`, by `Class.name`: a value, or for a method a function that takes its arguments. Answers
for what a version lacks are not used.
"""

import enum
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from tests.bindings.api import Api, Signature, plain, signatures

Answers = Mapping[str, Any]
_SIMPLE = {"None": None, "bool": True, "int": 1, "float": 1.0, "str": "text", "bytes": b"bytes"}
_PYTHON: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "slice": (slice,),
    "tuple": (tuple,),
    "list": (list, tuple),
    "buffer": (bytes, bytearray, memoryview),
}


class Native:
    """What all stand-ins are: without attributes of their own, as classes made by pybind11."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__}: No constructor defined!")


class _NativeType(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        if not hasattr(made, "_values"):
            raise TypeError(f"{cls.__name__}: __init__ of the base class was not called")
        return made


class Module(ModuleType):
    """The module; `Module.make("ITensor", shape=(1, 2))` makes what has no constructor."""

    def __init__(self, api: Api, answers: Answers) -> None:
        super().__init__("tensorrt")
        self._api, self._answers = api, answers
        self._types: dict[str, Any] = {}
        for name, members in api.raw["enums"].items():
            self._types[name] = enum.IntEnum(name.rpartition(".")[2], members)
        for name in api.raw["classes"]:
            self._class(name)
        for name, made in self._types.items():
            owner, _, inner = name.rpartition(".")
            setattr(self._types[owner] if owner else self, inner, made)
        for name, text in api.raw["functions"].items():
            setattr(self, name, self._function(name, text))
        for name, kind in api.raw["constants"].items():
            setattr(self, name, self._constant(name, kind))
        self.__version__ = api.version

    def make(self, kind: str, /, **values: Any) -> Any:
        """Return an instance with these values of properties."""
        cls = self._types[kind]
        made = cls.__new__(cls)
        made._values = values
        return made

    def _constant(self, name: str, kind: str) -> Any:
        """`trt.float32` is `trt.DataType.FLOAT`; none of the others is used."""
        renamed = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}
        return self._types[kind][renamed.get(name, name.upper())] if kind in self._types else None

    def _class(self, name: str) -> Any:
        if name in self._types:
            return self._types[name]
        of = self._api.raw["classes"][name]
        bases = [
            self._class(base) for base in of.get("bases", ()) if base in self._api.raw["classes"]
        ]
        space: dict[str, Any] = {"__slots__": ()}
        for method, text in of.get("methods", {}).items():
            space[method] = self._method(f"{name}.{method}", text)
        for kind in ("read_only", "settable"):
            for attribute, text in of.get(kind, {}).items():
                space[attribute] = self._property(name, attribute, plain(text), kind == "settable")
        for constant, kind in of.get("constants", {}).items():
            severities = self._types.get("ILogger.Severity", {})
            space[constant] = severities[constant] if kind == "Severity" else kind
        if name == "IHostMemory":  # the real one is a buffer
            space["__bytes__"] = lambda self: self._values["data"]
        self._types[name] = _NativeType(name, tuple(bases) or (Native,), space)
        return self._types[name]

    def _method(self, name: str, text: str) -> Callable[..., Any]:
        def method(this: Any, *args: Any, **kwargs: Any) -> Any:
            if name.endswith(".__init__"):
                this._values = {}
            signature = self._fitting(name, text, (this, *args), kwargs)
            if name not in self._answers:
                return None if signature is None else self._of(signature.result)
            answer = self._answers[name]
            return answer(this, *args, **kwargs) if callable(answer) else answer

        return method

    def _function(self, name: str, text: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            signature = self._fitting(name, text, args, kwargs)
            return None if signature is None else self._of(signature.result)

        return function

    def _property(self, owner: str, name: str, kind: str, settable: bool) -> property:
        answer = self._answers.get(f"{owner}.{name}")

        def get(this: Any) -> Any:
            if name in this._values:
                return this._values[name]
            return self._of(kind) if answer is None else answer

        def put(this: Any, value: Any) -> None:
            if value is not None and not self._takes(kind, value):
                raise TypeError(f"{owner}.{name} is {kind}, and cannot be {value!r}")
            this._values[name] = value

        return property(get, put if settable else None)

    def _fitting(
        self, name: str, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Signature | None:
        """Return the first overload that takes the arguments."""
        overloads = signatures(text)
        for signature in overloads:
            if self._fits(signature, args, kwargs):
                return signature
        if overloads:
            raise TypeError(f"{name}{text} does not take {args} {kwargs}")
        return None

    def _fits(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        parameters = signature.parameters
        given = dict(zip((p.name for p in parameters), args, strict=False)) | kwargs
        if len(args) > len(parameters) or len(given) != len(args) + len(kwargs):
            return False
        types = {p.name: p.type for p in parameters}
        return (
            all(p.optional or p.name in given for p in parameters)
            and given.keys() <= types.keys()
            and all(self._takes(types[name], value) for name, value in given.items())
        )

    def _known(self, kind: str) -> Any:
        """Return the class of this name, by its name in C++ too: `IParserError`."""
        return self._types.get(kind) or self._types.get(kind.removeprefix("I"))

    def _takes(self, kind: str, value: Any) -> bool:
        if kind.startswith("list["):
            inner = kind[5:-1]
            return isinstance(value, list | tuple) and all(self._takes(inner, x) for x in value)
        if kind == "Dims" and isinstance(value, list | tuple):
            return self._takes("list[int]", value)
        expected = _PYTHON.get(kind) or self._known(kind)
        return expected is None or isinstance(value, expected)

    def _of(self, kind: str) -> Any:
        """Return something of a type; None of one that no stand-in exists for."""
        if kind.startswith("list["):
            return [self._of(kind[5:-1])]
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        known = self._known(kind)
        if known is None:
            return None
        return next(iter(known)) if issubclass(known, enum.IntEnum) else self.make(known.__name__)
