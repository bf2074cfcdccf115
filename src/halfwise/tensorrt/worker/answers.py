"""What may answer each request: the form of its result, and what must hold of it beyond.

A worker is a process on another machine, behind commands, shells and containers. Nothing that it
says is used before it fits here. Log lines alone may belong to an earlier request, since TensorRT's
threads go on after it; they decide nothing.
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
"""Of a timing cache; those of whole model zoos are some hundred megabytes."""
MOST_INSPECTION_BYTES = 1 << 26
"""Of the inspector's JSON, some 2 kB per layer after fusion."""
MOST_INSPECTION_VALUES = 1 << 21
"""In that JSON: some 100 per layer."""
MOST_GROWTH = 1 << 20
"""Elements along dynamic axes of outputs, for each element of the inputs. Our choice: a vocabulary
has 2^18, and its axis is a fixed one in most models."""
_SHOWN = 60

Fits = Callable[[Any, int], str]
"""Takes a result that has the form of its model, and its bytes of payload. Returns what does not
fit, a clause; "" where all does."""


@dataclass(frozen=True)
class Expected:
    """What may answer a request.

    Attributes:
        model: Form of the header of its result.
        fits: What else must hold.
    """

    model: type[BaseModel]
    fits: Fits

    def __call__(self, number: int) -> Admit:
        """Return what admits the frames that answer a request of that number, in their order."""
        return Conversation(number, self).admit


def _alone(_: object, size: int) -> str:
    return f"{size} bytes follow where none are expected" if size else ""


NOTHING = Expected(Nothing, _alone)


def missing_of(asked: Collection[str]) -> Expected:
    """Return what may answer which of the files `asked` for are missing."""

    def fits(found: Missing, size: int) -> str:
        strange = set(found.missing) - set(asked)
        twice = len(set(found.missing)) < len(found.missing)
        return _alone(found, size) or (
            "names files that were not asked for" if strange or twice else ""
        )

    return Expected(Missing, fits)


def chunk_of(total: int, offset: int, length: int) -> Expected:
    """Return what may answer a request for a chunk of a file that was said to have `total` bytes.

    It is whole: as many bytes as were asked for, as far as the file goes.
    """

    def fits(found: Chunk, size: int) -> str:
        if found.total != total:
            return f"the file has {found.total} bytes, and {total} were promised"
        due = max(0, min(length, total - offset))
        return "" if size == due else f"{size} bytes of a file follow where {due} are due"

    return Expected(Chunk, fits)


def built_of(keep: Collection[str], cache: Callable[[], str]) -> Expected:
    """Return what may answer a build that constrains `keep`.

    Files lie in the worker's `cache`, by their hashes; a worker that starts for the build tells it.
    """

    def fits(found: Built, size: int) -> str:
        for file in (found.engine, found.timing_cache):
            if file.path != f"{cache()}/files/{file.sha256}":
                return "a path is not where it keeps its files"
        if not found.engine.bytes:
            return "the engine is empty"
        if found.timing_cache.bytes > MOST_CACHE_BYTES:
            return f"the timing cache has {found.timing_cache.bytes} bytes"
        strange = found.unconstrained.keys() - set(keep)
        return "a node was not to be constrained" if strange else _alone(found, size)

    return Expected(Built, fits)


def _describes(found: Described, size: int) -> str:
    if len({port.name for port in found.io}) < len(found.io):
        return "two inputs or outputs have one name"
    for port in found.io:
        told = [p for p in port.profiles if isinstance(p, Limits)]
        if port.profiles and (port.mode == "output" or len(port.profiles) != found.profiles):
            return "an input or output has other profiles than the engine"
        if not port.shape_tensor and any(
            len(sizes) != len(port.shape) or min(sizes, default=0) < 0
            for limits in told
            for sizes in (limits.min, limits.opt, limits.max)
        ):
            return "a profile does not fit the shape of its input"
    return _alone(found, size)


def ran_of(engine: Description, watch: Sequence[str] | None, elements: int) -> Expected:
    """Return what may answer a run of `engine` on inputs of so many `elements`.

    Its outputs have the engine's names, types and sizes, in its order; then come tensors marked for
    debugging: of `watch` alone where it is not None, which may hold outputs too; else no input and
    no output. The bytes are those of the arrays.
    """
    outputs = [t for t in engine.tensors if not t.is_input]
    ports = {t.name for t in engine.tensors}

    def fits(found: Ran, size: int) -> str:
        own = [o for o in found.outputs if not o.debug]
        extra = [o for o in found.outputs if o.debug]
        if [o.name for o in own] != [t.name for t in outputs]:
            return "its outputs are not those that the engine has"
        free = sum(prod(o.shape) for o in extra)
        for output, tensor in zip(own, outputs, strict=True):
            pairs = list(zip(output.shape, tensor.shape, strict=False))
            same = len(output.shape) == len(tensor.shape) and output.dtype == tensor.dtype
            if not same or any(asked not in (-1, there) for there, asked in pairs):
                return f"output {tensor.name[:_SHOWN]!r} is not of the engine's type and shape"
            free += prod(there for there, asked in pairs if asked == -1)
        names = {o.name for o in extra}
        if names & ports if watch is None else names - set(watch):
            return "tensors come along that were not asked for"
        if free > (elements + 1) * MOST_GROWTH:
            return f"{free} elements are more than inputs of {elements} explain"
        due = sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in found.outputs)
        return "" if size == due else f"{size} bytes follow where the arrays have {due}"

    return Expected(Ran, fits)


def _inspects(_: Inspected, size: int) -> str:
    most = MOST_INSPECTION_BYTES
    return f"{size} bytes of inspection follow, and {most} is the most" if size > most else ""


def crowded(inspection: memoryview) -> str:
    """Return that an inspector's text has more values than may be read, a clause; else ""."""
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
"""What may answer requests of which nothing else need be known."""


class Conversation:
    """One request and the frames that answer it, in their order."""

    def __init__(self, number: int, expected: Expected) -> None:
        """Take the number of the request, and what its result may be."""
        self._number, self._expected = number, expected
        self._before: set[str] = set()

    def admit(self, header: Header, size: int) -> None:
        """Take the header of a frame, and the number of bytes that follow it.

        Raises:
            Unfit: it is none that may come now.
        """
        header = dict(header)
        kind, number = header.pop("kind", None), header.pop("id", None)
        if kind != "result" and (not isinstance(kind, str) or kind not in KINDS):
            raise Unfit("sends a frame of a kind that is not known")
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
        """Check that a frame is of this request; of 0, told ahead, nobody waits for the end."""
        fits = type(number) is int and (
            number == self._number
            or (number == 0 and kind in ENDS)
            or (kind == "log" and 0 <= number <= self._number)
        )
        if not fits and not (kind == "log" and number is None):
            raise Unfit(f"sends a {kind} for a request that it does not have")
        if kind in ("waiting", "started"):
            if kind in self._before or "started" in self._before:
                raise Unfit(f"sends {kind!r} where it cannot come")
            self._before.add(kind)


def _first(error: ValidationError) -> str:
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    where = ".".join(str(part)[:_SHOWN] for part in faults[0]["loc"])
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"{where}: {faults[0]['msg']}{more}"
