"""Weights of large models, original and rounded, in files mapped into memory.

Pages of a mapped file are read on demand and dropped when memory is short, so a model may be larger
than memory. All users of an array share them.
"""

import concurrent.futures
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from itertools import chain
from math import nan, prod
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary, finalize

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.files import is_regular
from halfwise.formats import CHUNK, Format
from halfwise.graph.model import graphs_of
from halfwise.wording import size_of

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")

LARGE_MODEL_BYTES = 1 << 27
"""A model is large if its float weights have more bytes than this in FP32: with weights in files a
model of 0.6 GB takes 1.0 GB instead of 2.7, and no more time (docs/decisions/0009)."""
_PIECES = 64
"""Pieces that a core takes at a time: one alone takes less time than handing it out."""
LARGE_TENSOR_BYTES = 1024
"""Tensors above this size are kept out of the serialised graph and passed as arrays."""
EXTERNAL_DATA_BYTES = 1 << 30
"""Above this size in FP32 the weights go into a separate file: protobuf is limited to 2 GB.

Building a large protobuf also takes three times its size in memory.
"""
PROTOBUF_BYTES = (1 << 31) - 1
"""The largest serialised protobuf (protobuf.dev, "Encoding")."""

LOW_TYPES: Mapping[ir.DataType, str] = {
    ir.DataType.FLOAT16: "FP16",
    ir.DataType.BFLOAT16: "BF16",
}
"""The element types of the low formats, and their usual names."""
FLOATS = frozenset((ir.DataType.FLOAT, *LOW_TYPES))
"""The element types that take part in the choice of precision."""
_IN_USE = WeakValueDictionary[tuple[Path, int, int, int], mmap.mmap]()
"""Mapped files; their arrays keep them."""
_FILES = WeakSet[mmap.mmap]()
"""All mapped files of weights: the users' and temporary ones."""
ALIGNMENT = 64
"""Bytes: as for ONNX Runtime's own tensors (onnxruntime, allocator.h), a cache line."""
_LASTING = "/var/tmp"  # noqa: S108 - a folder for `tempfile`, which makes a file without a name
"""For large temporary files (File Hierarchy Standard 3.0, 5.15); /tmp may itself be in memory."""


class MappedTensor(ir.Tensor[NDArray[np.generic]]):
    """A tensor whose array is part of a file: the user's or a `WeightFile`."""


class WeightFile:
    """Temporary space on disk for arrays: a file without a name, mapped into memory.

    The system removes it when the last array is gone or the process ends in any way.
    """

    def __init__(self, nbytes: int, arrays: int = 1) -> None:
        """Reserve space for `arrays` arrays of `nbytes` bytes together.

        Raises:
            CaseError: not enough space.
        """
        size = max(1, nbytes + arrays * ALIGNMENT)
        folder = _folder()
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                # Without the reservation, a full disk would kill the process at a later write.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
                mapped = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise CaseError(
                f"The weights need {size_of(size)} of temporary space in {folder}: "
                f"{error.strerror}.",
                "Set TMPDIR to a folder with enough space: TMPDIR=FOLDER halfwise …",
            ) from error
        _FILES.add(mapped)
        self._bytes, self._used = np.frombuffer(mapped, np.uint8), 0

    def take(self, dtype: np.dtype, shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Return the next free space as an array of zeros to fill."""
        end = self._used + prod(shape) * dtype.itemsize
        place = self._bytes[self._used : end].view(dtype).reshape(shape)
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        return place


def pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield an array flat, in views of at most `CHUNK` elements.

    Results computed from a piece take bounded memory, however large the array; one in a mapped file
    has left memory after the last piece (`release_files`).
    """
    flat = array.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        yield flat[start : start + CHUNK]
    if flat.size > CHUNK:
        release_files()


def each_piece(work: Callable[..., _Found], *arrays: NDArray[Any]) -> list[_Found]:
    """Return what `work` gives for each piece of arrays of one size, computed on all cores.

    Empty arrays have one piece.

    NumPy computes without Python's lock, so that weights of gigabytes do not wait for one core.
    """
    flat = [array.reshape(-1) for array in arrays]
    starts = range(0, max(1, flat[0].size), CHUNK)

    def some(first: int) -> list[_Found]:
        part = starts[first : first + _PIECES]
        return [work(*(each[start : start + CHUNK] for each in flat)) for start in part]

    if len(starts) <= _PIECES:
        return some(0)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = list(pool.map(some, range(0, len(starts), _PIECES)))
    release_files()
    return list(chain.from_iterable(found))


def once_for_each(work: Callable[[_Given], _Found]) -> Callable[[_Given], _Found]:
    """Remember what `work` finds of an object that never changes, as long as it lives.

    Such as the array of a constant, or a network. What is found must not hold it. Exceptions are
    not remembered.
    """
    known = dict[int, _Found]()

    @wraps(work)
    def found(given: _Given) -> _Found:
        if id(given) not in known:
            known[id(given)] = work(given)
            finalize(given, known.pop, id(given), None).atexit = False
        return known[id(given)]

    return found


@once_for_each
def binades(array: NDArray[Any]) -> Mapping[int, int]:
    """Return the number of elements with a magnitude in [2^k, 2^(k+1)), by k.

    Without zeros, NaN and infinities; FP32's subnormal numbers count as k = -127.
    """
    counts = np.sum(each_piece(_by_exponent, array), axis=0)
    return {exponent - 127: int(n) for exponent, n in enumerate(counts[:255]) if n}


def _by_exponent(piece: NDArray[Any]) -> NDArray[np.int64]:
    bits = piece.astype(np.float32).view(np.uint32)
    counts = np.bincount((bits >> 23) & 0xFF, minlength=256)
    counts[0] -= bits.size - np.count_nonzero(bits << 1)
    return counts


@once_for_each
def span(array: NDArray[Any]) -> tuple[float, float]:
    """Return the smallest and largest finite element, NaN for none; each array is read once."""
    ends = [found for found in each_piece(_ends, array) if found]
    lows, highs = zip(*ends, strict=True) if ends else ((nan,), (nan,))
    return min(lows), max(highs)


def _ends(piece: NDArray[Any]) -> tuple[float, float] | None:
    low, high = (piece.min(), piece.max()) if piece.size else (nan, nan)
    if not (np.isfinite(low) and np.isfinite(high)):
        finite = piece[np.isfinite(piece)]
        if not finite.size:
            return None
        low, high = finite.min(), finite.max()
    return float(low), float(high)


def release_files() -> None:
    """Take the pages of all mapped files out of this process; the next read brings them back.

    They stay in the system's page cache, which drops pages first that no process holds. Files that
    are small together stay: bringing pages back takes about 30 ms for each gigabyte.
    """
    if hasattr(mmap, "MADV_DONTNEED") and 4 * sum(map(len, _FILES)) > LARGE_MODEL_BYTES:
        for file in list(_FILES):
            file.madvise(mmap.MADV_DONTNEED)


def is_large(model: ir.Model, large_from: int = LARGE_MODEL_BYTES) -> bool:
    """Return whether the float weights in files have more than `large_from` bytes in FP32.

    Low weights count as FP32, so if a model is large, so is its mixed version.
    """
    elements = sum(
        t.size for t in _weights(model) if isinstance(t, MappedTensor | ir.ExternalTensor)
    )
    return 4 * elements > large_from


def weight_bytes(model: ir.Model) -> int:
    """Return the total size of all initializers in bytes."""
    return sum(v.const_value.nbytes for v in _values(model) if v.const_value is not None)


def save(model: ir.Model, path: Path) -> None:
    """Write a model; large weights go into a file next to it."""
    beside = weight_bytes(model) > EXTERNAL_DATA_BYTES or is_large(model, EXTERNAL_DATA_BYTES)
    ir.save(model, path, external_data=f"{path.name}.data" if beside else None)


def map_files(model: ir.Model) -> None:
    """Map each file of weights once; onnx-ir would map it once per tensor.

    A process may have only about a thousand file mappings. Tensors that a file does not hold
    completely, or that lie outside the model's folder, stay: onnx-ir refuses them when read.
    """
    files: dict[Path, NDArray[np.uint8]] = {}
    for value in _values(model):
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        file, start = Path(tensor.path).resolve(), tensor.offset or 0
        end = start + tensor.nbytes
        if not _is_own(file, Path(tensor.base_dir)) or not 0 <= start <= end <= file.stat().st_size:
            continue
        if tensor.dtype.bitwidth < 8 or not tensor.nbytes:
            value.const_value = _owned(tensor)
            continue
        if file not in files:
            files[file] = _mapped(file)
        array = files[file][start:end].view(tensor.dtype.numpy())
        shape = tuple(tensor.shape.numpy())
        value.const_value = MappedTensor(array.reshape(shape), dtype=tensor.dtype, name=value.name)
    _own_attributes(model, ir.ExternalTensor)


def _mapped(file: Path) -> NDArray[np.uint8]:
    """Return a file's bytes; a file that is loaded twice is mapped once, unless it changed."""
    seen = file.stat()
    key = (file, seen.st_ino, seen.st_size, seen.st_mtime_ns)
    mapped = _IN_USE.get(key)
    if mapped is None:
        with file.open("rb") as stream:
            mapped = _IN_USE[key] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        _FILES.add(mapped)
    return np.frombuffer(mapped, np.uint8)


def own_weights(model: ir.Model, large_from: int = LARGE_MODEL_BYTES) -> None:
    """Move tensors out of the protobuf: weights of a large model into a file, others into memory.

    Those in a protobuf are copied on every read, and one keeps the whole protobuf alive. Elements
    of less than a byte take one then.

    Raises:
        CaseError: there is not enough temporary space.
    """
    inside = [t for t in _weights(model) if not isinstance(t, MappedTensor | ir.ExternalTensor)]
    mapped: Mapping[int, ir.TensorProtocol] = {}
    if inside and 4 * sum(t.size for t in _weights(model)) > large_from:
        mapped = _moved(inside, WeightFile(sum(t.nbytes for t in inside), len(inside)))
    for value in _values(model):
        stored = value.const_value
        if id(stored) in mapped:
            value.const_value = mapped[id(stored)]
        elif isinstance(stored, ir.serde.TensorProtoTensor):
            value.const_value = _owned(stored)
    _own_attributes(model, ir.serde.TensorProtoTensor)


def widen_weights(model: ir.Model, large_from: int = LARGE_MODEL_BYTES) -> None:
    """Widen the low weights of a large model to FP32, in a file; their values' types stay.

    Raises:
        CaseError: there is not enough temporary space.
    """
    low = [t for t in _weights(model) if t.dtype != ir.DataType.FLOAT]
    if not low or not is_large(model, large_from):
        return
    file = WeightFile(4 * sum(t.size for t in low), len(low))
    wide = _moved(low, file, ir.DataType.FLOAT)
    for value in _values(model):
        value.const_value = wide.get(id(value.const_value), value.const_value)


def without_weights(model: ir.Model) -> ir.Model:
    """Return a copy with FP32 zeros that take no memory in place of large float weights.

    This is for callers that need only the nodes.
    """
    copy = model.clone()
    for value in _values(copy):
        tensor = value.const_value
        if tensor is not None and tensor.dtype in FLOATS and tensor.nbytes > LARGE_TENSOR_BYTES:
            zeros = np.broadcast_to(np.float32(0), tuple(tensor.shape.numpy()))
            value.const_value = ir.Tensor(zeros, name=value.name)
    return copy


class LowWeights:
    """The weights of one network in a low format.

    Each is rounded once, and shared by all users: those of a large network in a file, others in
    memory.

    Attributes:
        fmt: The low format.
        large: Whether the network is large.
    """

    def __init__(
        self,
        model: ir.Model,
        fmt: Format,
        *,
        large_from: int = LARGE_MODEL_BYTES,
        shared: "LowWeights | None" = None,
    ) -> None:
        """Determine which weights are shared; a file is made on the first request.

        Those that `shared` has, in the same format, are taken from there.
        """
        self.fmt, self._shared = fmt, shared
        self._dtype = ir.DataType.from_numpy(fmt.dtype)
        self.large = is_large(model, large_from)
        # This keeps the tensors alive, so their ids stay valid.
        self._sources = {
            id(t): t
            for t in _weights(model)
            if t.dtype == ir.DataType.FLOAT and not (shared and shared.has(t))
        }
        self._arrays: dict[int, NDArray[np.generic]] = {}
        self._file: WeightFile | None = None

    def has(self, tensor: ir.TensorProtocol) -> bool:
        """Return whether `tensor` is a weight whose low version is shared."""
        shared = self._shared is not None and self._shared.has(tensor)
        return shared or id(tensor) in self._sources

    def in_file(self, tensor: ir.TensorProtocol) -> bool:
        """Return whether the low version of `tensor` lies in the file."""
        shared = self._shared is not None and self._shared.in_file(tensor)
        return shared or (self.large and id(tensor) in self._sources)

    def low(self, tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
        """Return `tensor` as `Format.store_constant` stores it.

        Args:
            tensor: f32[*shape].
            name: Name of the result.

        Raises:
            CaseError: there is not enough temporary space.
        """
        if id(tensor) not in self._sources:
            if self._shared is not None:
                return self._shared.low(tensor, name)
            array = np.asarray(tensor.numpy(), np.float32)
            return ir.Tensor(self.fmt.store_constant(array), dtype=self._dtype, name=name)
        if id(tensor) not in self._arrays:
            array = np.asarray(tensor.numpy())
            low = self._store(array) if self.large else self.fmt.store_constant(array)
            low.flags.writeable = False
            self._arrays[id(tensor)] = low
        kind = MappedTensor if self.large else ir.Tensor
        return kind(self._arrays[id(tensor)], dtype=self._dtype, name=name)

    def _store(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        if self._file is None:
            elements = sum(t.size for t in self._sources.values())
            self._file = WeightFile(elements * self.fmt.dtype.itemsize, len(self._sources))
        place = self._file.take(self.fmt.dtype, array.shape)
        each_piece(self._fill, array, place)
        return place

    def _fill(self, source: NDArray[np.generic], target: NDArray[np.generic]) -> None:
        target[...] = self.fmt.store(np.asarray(source, np.float32))


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in graphs_of(model):
        yield from graph.initializers.values()


def _weights(model: ir.Model) -> list[ir.TensorProtocol]:
    """Return the float tensors that count, each once."""
    tensors = [v.const_value for v in _values(model) if v.const_value is not None]
    counted = [t for t in tensors if t.dtype in FLOATS and t.nbytes > LARGE_TENSOR_BYTES]
    return list({id(t): t for t in counted}.values())


def _moved(
    tensors: Iterable[ir.TensorProtocol], file: WeightFile, dtype: ir.DataType | None = None
) -> dict[int, MappedTensor]:
    """Copy tensors into `file`, as `dtype` if given; return the copies by id."""
    moved = {}
    for tensor in tensors:
        kind = dtype or tensor.dtype
        place = file.take(kind.numpy(), tuple(tensor.shape.numpy()))
        place[...] = tensor.numpy()
        place.flags.writeable = False
        moved[id(tensor)] = MappedTensor(place, dtype=kind, name=tensor.name)
    return moved


def _own_attributes(
    model: ir.Model, kind: type[ir.ExternalTensor] | type[ir.serde.TensorProtoTensor]
) -> None:
    """Own tensors of a kind that nodes hold, such as a Constant that is a body's output."""
    for node in model.graph.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if isinstance(attribute.value, kind):
                node.attributes[name] = ir.AttrTensor(name, _owned(attribute.value))
            elif attribute.type == ir.AttributeType.TENSORS:
                tensors = attribute.as_tensors()
                owned = [_owned(t) if isinstance(t, kind) else t for t in tensors]
                node.attributes[name] = ir.AttrTensors(name, owned)


def _owned(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor in memory: a file is only found next to the user's model."""
    about: dict[str, Any] = {"name": tensor.name, "doc_string": tensor.doc_string}
    about["metadata_props"] = dict(tensor.metadata_props)
    array = tensor.numpy()
    copied = np.array(array) if isinstance(tensor, ir.ExternalTensor) else array
    return ir.Tensor(copied, dtype=tensor.dtype, **about)


def _is_own(file: Path, folder: Path) -> bool:
    """Return whether a resolved `file` lies in `folder` and under no other name elsewhere."""
    return file.is_relative_to(folder.resolve()) and is_regular(file) and file.stat().st_nlink == 1


def _folder() -> str:
    lasting = "TMPDIR" not in os.environ and os.access(_LASTING, os.W_OK)
    return _LASTING if lasting else tempfile.gettempdir()
