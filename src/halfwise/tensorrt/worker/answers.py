"""The answers that each request accepts: the form of the result, and further conditions.

A worker is a process on another machine, behind commands, shells and containers. Nothing from it is
used before it passes these checks. Only log lines may belong to an earlier request, since
TensorRT's threads outlive it; no decision depends on them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pydantic import BaseModel, ValidationError

from halfwise.tensorrt.worker.described import Description
from halfwise.tensorrt.worker.forms import (
    KINDS,
    Built,
    Chunk,
    Described,
    Hello,
    Inspected,
    Limits,
    Missing,
    Nothing,
    Ran,
    Timed,
)
from halfwise.tensorrt.worker.frames import ENDS, Admit, Header, Unfit, values
from halfwise.tensorrt.worker.worker import ITEM_BYTES

MOST_CACHE_BYTES = 1 << 30
"""Largest timing cache, in bytes; those of whole model zoos are a few hundred megabytes."""
MOST_INSPECTION_BYTES = 1 << 26
"""Largest inspector JSON, in bytes; a layer after fusion takes about 2 kB."""
MOST_INSPECTION_VALUES = 1 << 21
"""Largest number of values in that JSON; a layer has about 100."""
MOST_GROWTH = 1 << 20
"""Largest number of elements along outputs' dynamic axes per input element. Our choice: a
vocabulary has 2^18, and its axis is fixed in most models."""
_SHOWN = 60

Fits = Callable[[Any, int], str]
"""Takes a result, validated by its model, and the size of its payload in bytes. Returns a clause on
what does not fit; "" if everything fits."""


@dataclass(frozen=True)
class Expected:
    """The answer that a request accepts.

    Attributes:
        model: Form of the result's header.
        fits: Further conditions.
    """

    model: type[BaseModel]
    fits: Fits

    def __call__(self, number: int) -> Admit:
        """Return the check that admits, in order, the frames answering request `number`."""
        return Conversation(number, self).admit


def _alone(_: object, size: int) -> str:
    return f"{size} bytes follow, but none are expected" if size else ""


NOTHING = Expected(Nothing, _alone)


def missing_of(asked: Collection[str]) -> Expected:
    """Return the answer expected when asking which of the files `asked` are missing."""

    def fits(found: Missing, size: int) -> str:
        strange = set(found.missing) - set(asked)
        twice = len(set(found.missing)) < len(found.missing)
        return _alone(found, size) or (
            "names files that were not asked for" if strange or twice else ""
        )

    return Expected(Missing, fits)


def chunk_of(total: int, offset: int, length: int) -> Expected:
    """Return the answer expected to a request for a chunk of a file of `total` reported bytes.

    It must be complete: as many bytes as requested, up to the end of the file.
    """

    def fits(found: Chunk, size: int) -> str:
        if found.total != total:
            return f"the file has {found.total} bytes, but {total} were announced"
        due = max(0, min(length, total - offset))
        return "" if size == due else f"{size} bytes of the file follow instead of {due}"

    return Expected(Chunk, fits)


def built_of(keep: Collection[str], cache: Callable[[], str]) -> Expected:
    """Return the answer expected to a build that constrains `keep`.

    Files lie in the worker's `cache` by their hashes; a worker reports the folder when it starts.
    """

    def fits(found: Built, size: int) -> str:
        for file in (found.engine, found.timing_cache):
            if file.path != f"{cache()}/files/{file.sha256}":
                return "a path lies outside its file store"
        if not found.engine.bytes:
            return "the engine is empty"
        if found.timing_cache.bytes > MOST_CACHE_BYTES:
            return f"the timing cache has {found.timing_cache.bytes} bytes"
        strange = found.unconstrained.keys() - set(keep)
        return "it names a node that was not asked for" if strange else _alone(found, size)

    return Expected(Built, fits)


def _describes(found: Described, size: int) -> str:
    if len({port.name for port in found.io}) < len(found.io):
        return "two inputs or outputs have the same name"
    for port in found.io:
        told = [p for p in port.profiles if isinstance(p, Limits)]
        if port.profiles and (port.mode == "output" or len(port.profiles) != found.profiles):
            return "an input or output has the wrong number of profiles"
        if not port.shape_tensor and any(
            len(sizes) != len(port.shape) or min(sizes, default=0) < 0
            for limits in told
            for sizes in (limits.min, limits.opt, limits.max)
        ):
            return "a profile does not fit the shape of its input"
    return _alone(found, size)


def ran_of(engine: Description, watch: Sequence[str] | None, elements: int) -> Expected:
    """Return the answer expected to a run of `engine` on inputs with `elements` elements in all.

    Outputs have the engine's names, types and sizes, in its order; then come tensors marked for
    debugging: only those in `watch`, even outputs, if it is not None; else any except inputs and
    outputs. The payload has exactly the size of the arrays.
    """
    outputs = [t for t in engine.tensors if not t.is_input]
    ports = {t.name for t in engine.tensors}

    def fits(found: Ran, size: int) -> str:
        own = [o for o in found.outputs if not o.debug]
        extra = [o for o in found.outputs if o.debug]
        if [o.name for o in own] != [t.name for t in outputs]:
            return "the outputs are not the engine's"
        free = sum(prod(o.shape) for o in extra)
        for output, tensor in zip(own, outputs, strict=True):
            pairs = list(zip(output.shape, tensor.shape, strict=False))
            same = len(output.shape) == len(tensor.shape) and output.dtype == tensor.dtype
            if not same or any(asked not in (-1, there) for there, asked in pairs):
                return f"output {tensor.name[:_SHOWN]!r} does not have the engine's type and shape"
            free += prod(there for there, asked in pairs if asked == -1)
        names = {o.name for o in extra}
        if names & ports if watch is None else names - set(watch):
            return "it contains tensors that were not asked for"
        if free > (elements + 1) * MOST_GROWTH:
            return f"{free} elements are too many for inputs of {elements}"
        due = sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in found.outputs)
        return "" if size == due else f"{size} bytes follow, but the arrays take {due}"

    return Expected(Ran, fits)


def _inspects(_: Inspected, size: int) -> str:
    most = MOST_INSPECTION_BYTES
    return f"{size} bytes of inspection follow; at most {most} are allowed" if size > most else ""


def crowded(inspection: memoryview) -> str:
    """Return a clause if an inspector's text has more values than may be read; else ""."""
    most = MOST_INSPECTION_VALUES
    return f"sends an inspection of over {most} values" if values(bytes(inspection)) > most else ""


BY_OP: Mapping[str, Expected] = {
    "hello": Expected(Hello, _alone),
    "put": NOTHING,
    "forget": NOTHING,
    "describe": Expected(Described, _describes),
    "time": Expected(Timed, _alone),
    "inspect": Expected(Inspected, _inspects),
}
"""Expected answers to requests that need no further context."""


class Conversation:
    """Checks the frames that answer one request, in order."""

    def __init__(self, number: int, expected: Expected) -> None:
        """Take the request's number and its expected result."""
        self._number, self._expected = number, expected
        self._before: set[str] = set()

    def admit(self, header: Header, size: int) -> None:
        """Check the header of a frame, and the number of bytes that follow it.

        Raises:
            Unfit: the frame may not come now.
        """
        header = dict(header)
        kind, number = header.pop("kind", None), header.pop("id", None)
        if kind != "result" and (not isinstance(kind, str) or kind not in KINDS):
            raise Unfit("sends a frame of an unknown kind")
        self._check_number(kind, number)
        expected = self._expected
        if number == 0:
            expected = NOTHING
        model = expected.model if kind == "result" else KINDS[kind]
        try:
            found = model.model_validate(header)
        except ValidationError as error:
            raise Unfit(f"sends a {kind} that does not fit: {_first(error)}") from None
        what = (expected.fits if kind == "result" else _alone)(found, size)
        if what:
            raise Unfit(f"sends a {kind} that does not fit: {what}")

    def _check_number(self, kind: str, number: object) -> None:
        """Check that a frame belongs to this request; nobody awaits the end of 0, sent ahead."""
        fits = type(number) is int and (
            number == self._number
            or (number == 0 and kind in ENDS)
            or (kind == "log" and 0 <= number <= self._number)
        )
        if not fits and not (kind == "log" and number is None):
            raise Unfit(f"sends a {kind} for a request that was not made")
        if kind in ("waiting", "started"):
            if kind in self._before or "started" in self._before:
                raise Unfit(f"sends {kind!r} out of order")
            self._before.add(kind)


def _first(error: ValidationError) -> str:
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    where = ".".join(str(part)[:_SHOWN] for part in faults[0]["loc"])
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"{where}: {faults[0]['msg']}{more}"
