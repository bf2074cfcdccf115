"""ONNX Runtime: the only place that creates its sessions."""

import ctypes
import functools
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from halfwise import memory
from halfwise.case import CPU, Runtime
from halfwise.emulation import budget as bounded
from halfwise.emulation.cpu_kernels import WRITTEN_OUT, with_cpu_kernels
from halfwise.errors import BackendMissing, CaseError, GraphRefused, KernelMissing, RunFailed
from halfwise.files import is_regular, no_file
from halfwise.graph.aside import NOT_JUDGED
from halfwise.graph.casts import reads_low_weights
from halfwise.graph.model import is_standard
from halfwise.graph.protobufs import STAND_IN, weightless
from halfwise.graph.weights import once_for_each, release_files
from halfwise.scratch import scratch
from halfwise.wording import excerpt, size_of

_SPARE = 1 << 20
"""Bytes that a chunk may waste if it is less than twice as large as the request; with ONNX
Runtime's default of 128 MiB, a tensor of 65 MiB may take 128 (bfc_arena.h)."""

_SHARED = "session.use_env_allocators"
_FATAL = 4
"""The severity from which ONNX Runtime logs: errors are raised, too."""
_MUCH = 1 << 28
"""Peak bytes of a process from which free memory is worth giving back. Our choice."""
_GIVE_BACK = "memory.enable_memory_arena_shrinkage"
"""Run option: at its end, the arenas of these devices return their free memory."""


def share(options: ort.SessionOptions) -> None:
    """Make a session with `options` take its memory from the shared arena."""
    _register_arena()
    options.add_session_config_entry(_SHARED, "1")


def give_back() -> None:
    """Return free memory of the arena and the heap to the system; later sessions take it again.

    Not in a process that never had much: it takes as long as to load a small model.
    """
    if (memory.peak() or _MUCH) < _MUCH:
        return
    options = ort.RunOptions()
    options.add_run_config_entry(_GIVE_BACK, "cpu:0")
    _smallest("cpu").run(None, {"x": np.zeros(1, np.float32)}, options)
    with suppress(OSError, AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def own(result: Any) -> Any:  # noqa: ANN401 - a tensor, or what else a model may give
    """Return an array with its own memory: one inside the arena keeps the memory around it.

    Anything that is not an array is returned as it is.
    """
    return result.copy() if isinstance(result, np.ndarray) and not result.flags.owndata else result


@functools.cache
def _register_arena() -> None:
    where = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    # A program that calls halfwise may have an arena for its own sessions already.
    with suppress(InvalidArgument, RuntimeError):
        ort.create_and_register_allocator(
            where, ort.OrtArenaCfg({"max_dead_bytes_per_chunk": _SPARE})
        )


@functools.cache
def _smallest(device: str) -> ort.InferenceSession:
    """Return a session whose run does little: the arena only shrinks at the end of a run."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if device == "cpu":
        share(options)
    return ort.InferenceSession(model.SerializeToString(), options, providers=_CHAINS[device])


def start(runtime: Runtime) -> None:
    """Begin to start a GPU while others read a model: its libraries take most of a second."""
    if runtime.device == "cuda" and devices()["cuda"]:
        threading.Thread(target=_start, name="halfwise-start", daemon=True).start()


def _start() -> None:
    _preload()
    with suppress(*OrtFailure, RuntimeError, OSError):  # the first session says why
        _smallest("cuda").run(None, {"x": np.zeros(1, np.float32)})


def _preload() -> None:
    memory.uncap()
    ort.preload_dlls()
    # The provider writes what cuDNN refuses to the logger of the process.
    ort.set_default_logger_severity(_FATAL)


_REGISTERED = 2
"""`numpy.dtype.isbuiltin` of types that other packages registered with NumPy."""


def ort_value(array: NDArray[np.generic]) -> ort.OrtValue:
    """Return `array` for ONNX Runtime, sharing its memory if each element takes whole bytes.

    BF16 and the types of quantised models are registered types in NumPy, not built-in ones. Types
    smaller than a byte are packed into the start of a buffer of one byte per element.
    """
    if array.dtype.isbuiltin != _REGISTERED:
        return ort.OrtValue.ortvalue_from_numpy(array)
    dtype = ir.DataType.from_numpy(array.dtype)
    if dtype.bitwidth < 8:
        packed = np.frombuffer(ir.Tensor(array).tobytes(), np.uint8)
        raw = np.zeros(array.shape, np.uint8)
        raw.reshape(-1)[: packed.size] = packed
    else:
        raw = array.view(f"u{array.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(dtype))


@once_for_each
def _copied(array: NDArray[np.generic]) -> ort.OrtValue:
    value = ort.OrtValue.from_dlpack(ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
    release_files()
    return value


def uploaded(array: NDArray[np.generic]) -> ort.OrtValue | None:
    """Return `array` on the GPU, where one copy serves all sessions; None if that is not possible.

    ONNX Runtime shares only values that it does not own itself, as one from DLPack. Older versions
    have no DLPack, and it has no types that other packages registered with NumPy. What keeps a GPU
    from taking them, such as its memory, is for the session to say.
    """
    if array.dtype.isbuiltin == _REGISTERED or not hasattr(ort.OrtValue, "from_dlpack"):
        return None
    with suppress(*OrtFailure, RuntimeError):
        return _copied(array)
    return None


@contextmanager
def lent(options: ort.SessionOptions, values: Mapping[str, ort.OrtValue]) -> Iterator[None]:
    """Pass large tensors by name to the session created within the block, which shares them.

    ONNX Runtime copies external initializers, but not values shared between sessions. For these,
    the file that the graph names must exist. It is empty, so a missing tensor is an error.
    """
    for name, value in values.items():
        options.add_initializer(name, value)
    if not values:
        yield
        return
    with scratch() as folder:
        (folder / STAND_IN).touch()
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
        yield


_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
# By default CUDA uses TF32, which would round the reference itself, and times all algorithms of
# each convolution in each session.
_CHAINS: dict[str, list[str | tuple[str, dict[str, str]]]] = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": [
        ("CUDAExecutionProvider", {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}),
        "CPUExecutionProvider",
    ],
}

_FAILED_NODE = re.compile(r"while running \S+ node\. Name:'([^']*)' Status Message: ")
"""How ONNX Runtime names a node that failed: once for each enclosing If or Loop, outermost first.

The text after the last match is its message about the innermost node (onnxruntime,
sequential_executor.cc).
"""

_LIBRARY = "Give a shared library of custom operators built for this version of ONNX Runtime."
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_SOURCE = re.compile(r"/\S+:\d+ (?:.* was false\. |[^)]*\)(?: const|::<lambda\(\)>)? )")
"""A place in ONNX Runtime's own source: the function, and a condition that does not hold
(ORT_ENFORCE)."""

_NOT_ALLOCATED = re.compile(r"Failed to allocate memory for requested buffer of size (\d+)")
"""How ONNX Runtime reports a failed allocation, with its size in bytes (onnxruntime,
bfc_arena.cc)."""

OrtFailure = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
    ort_errors.NoSuchFile,
    ort_errors.NoModel,
    ort_errors.EPFail,
)
"""Exceptions that ONNX Runtime raises; they have no common base class."""


class Session:
    """A model loaded in ONNX Runtime with all graph optimisations off.

    Optimisations are off because fusion would skip the very rounding under study, because results
    must be equal node for node in every session, and because optimising thousands of nodes takes
    minutes.

    Attributes:
        outputs: Names of the model's outputs.
        output_types: ONNX Runtime's type of each output, such as `tensor(float)`, by name.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        runtime: Runtime = CPU,
        optimise: bool = False,
    ) -> None:
        """Load `model`.

        Args:
            model: Any model; it may change or be deleted afterwards.
            runtime: Where it runs.
            optimise: Enable all graph optimisations.

        Raises:
            BackendMissing: `runtime.device` is not available.
            RunFailed: loading needs more memory than there is, or takes too long (see `bounded`).
            CaseError: ONNX Runtime cannot load the model, for example because of a custom operator,
                or cannot load one of the libraries. It is a `KernelMissing` if only a kernel for
                some type is missing, or the expansion of an operator does not take its types; a
                `GraphRefused` if ONNX Runtime finds the graph invalid.
        """
        device = runtime.device
        provider = provider_of(device)
        if device == "cuda":
            _preload()
        else:
            give_back()
        proto, arrays = weightless(model)
        proto = with_cpu_kernels(proto) if device == "cpu" else proto
        # Copying weights takes half the time of loading. ONNX Runtime reads those that are lent as
        # long as the session lives.
        self._lent = {} if optimise else _in_place(arrays, device)

        def load() -> ort.InferenceSession:
            options = _options(model, optimise=optimise)
            if device == "cpu":
                share(options)
            if not optimise and reads_low_weights(model):
                # Otherwise all are widened before the first is read (test_ort.py, decision 9).
                options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
            _register(options, runtime.libraries)
            rest = {name: ort_value(a) for name, a in arrays.items() if name not in self._lent}
            options.add_external_initializers(list(rest), list(rest.values()))  # copies
            with lent(options, self._lent):
                return _loaded(proto, options, device)

        try:
            try:
                self._session = load()
            except OrtFailure:
                # A node without a kernel for the GPU reads weights on the CPU.
                if device == "cpu" or not self._lent:
                    raise
                self._lent = {}
                self._session = load()
        except (*OrtFailure, MemoryError) as error:
            raise _too_large(error) or _not_loadable(model, error) from error
        if provider not in self._session.get_providers():
            raise BackendMissing(
                f"ONNX Runtime has {provider}, but cannot start it.",
                "Check the driver and the CUDA and cuDNN libraries, or use --device cpu.",
            )
        judged = {v.name for v in model.graph.outputs if NOT_JUDGED not in v.metadata_props}
        self.outputs = tuple(o.name for o in self._session.get_outputs() if o.name in judged)
        self.output_types = {o.name: o.type for o in self._session.get_outputs()}

    def run(
        self,
        sample: Mapping[str, NDArray[np.generic]],
        outputs: Sequence[str] | None = None,
        *,
        lent: bool = False,
    ) -> dict[str, NDArray[np.generic]]:
        """Return the outputs by name: all, or those requested.

        Args:
            sample: The inputs by name.
            outputs: Names of outputs; None for all.
            lent: Leave them in ONNX Runtime's memory, for callers that do not keep them.

        Raises:
            RunFailed: ONNX Runtime failed on this sample, or took too long (see `bounded`).
        """
        names = list(outputs) if outputs is not None else list(self.outputs)
        options = ort.RunOptions()
        try:
            results = bounded.call(
                lambda: self._session.run(names, dict(sample), options),
                lambda: setattr(options, "terminate", True),
                "An evaluation of the model",
            )
        # ValueError: an input is missing. RuntimeError: an element type that ONNX Runtime does not
        # take from NumPy.
        except (*OrtFailure, ValueError, RuntimeError, MemoryError) as error:
            if too_large := _too_large(error):
                raise too_large from error
            parts = _FAILED_NODE.split(str(error))
            node, why = parts[-2:] if len(parts) > 1 else ("", "")
            raise RunFailed(
                f"ONNX Runtime failed while running the model: {_first_line(error)}",
                "Check that the inputs fit the model: shapes, ranges of indices, data types.",
                node=node,
                why=said(" ".join(why.split())),
            ) from error
        finally:
            release_files()
        return dict(zip(names, results if lent else map(own, results), strict=True))


def has_operator(node: ir.Node) -> bool:
    """Return whether ONNX Runtime runs a node's operator without a library of the user's."""
    if is_standard(node) and onnx.defs.has(node.op_type):
        return True
    operator = "" if is_standard(node) else node.domain, node.op_type
    return operator in WRITTEN_OUT or operator in _kernels()


@functools.cache
def _kernels() -> frozenset[tuple[str, str]]:
    return frozenset((k.domain, k.op_name) for k in ort_errors.get_all_opkernel_def())


def runtime_version() -> str:
    """Return the version of ONNX Runtime, whichever package (CPU or GPU) it comes from."""
    return str(ort.__version__)


def provider_of(device: str) -> str:
    """Return the name of a device's provider.

    Raises:
        BackendMissing: the installed ONNX Runtime lacks it.
    """
    provider = _PROVIDERS[device]
    if provider not in ort.get_available_providers():
        raise BackendMissing(
            f"The installed ONNX Runtime has no {provider}.",
            "Install onnxruntime-gpu (`pip install 'halfwise[cuda]'`), or use the CPU.",
        )
    return provider


def devices() -> dict[str, bool]:
    """Return, for each device, whether the installed ONNX Runtime has its provider."""
    available = ort.get_available_providers()
    return {device: provider in available for device, provider in _PROVIDERS.items()}


def _in_place(arrays: Mapping[str, NDArray[np.generic]], device: str) -> dict[str, ort.OrtValue]:
    """Return the arrays that sessions on `device` read without copies of their own."""
    hold = uploaded if device == "cuda" else ort_value
    return {name: value for name, a in arrays.items() if (value := hold(a)) is not None}


def _loaded(
    proto: onnx.ModelProto, options: ort.SessionOptions, device: str
) -> ort.InferenceSession:
    serialised = proto.SerializeToString()
    return bounded.call(
        lambda: ort.InferenceSession(serialised, options, providers=_CHAINS[device]),
        lambda: options.set_load_cancellation_flag(True),
        "Loading the model in ONNX Runtime",
    )


def _options(model: ir.Model, *, optimise: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    options.log_severity_level = _FATAL
    if optimise and _quantises_to_floats(model):
        # It would turn such pairs into QLinear operators, which take only integers.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    # On CUDA, sums otherwise differ from run to run (bench/cuda.py).
    options.use_deterministic_compute = True
    # Its memory would come on top of that of the first run, and it saves no time
    # (bench/overhead.py).
    options.enable_mem_pattern = False
    # Reuse is planned in n² steps, half the time of loading and more, and saves no memory: a tensor
    # is freed after its last reader, and an operator still writes over its input. It also fails
    # where an operator of ONNX Runtime's own infers a wrong size: a cache with new entries as long
    # as the one without (test_custom.py).
    options.enable_mem_reuse = False
    # Packed weights are copies, and sum in another order, but not in inner branches.
    if not optimise:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    # Threads that spin while they wait take cores from those that work: up to ten times slower on a
    # busy machine, and no faster on an idle one (see bench/overhead.py).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _quantises_to_floats(model: ir.Model) -> bool:
    values = (v for n in model.graph.all_nodes() for v in n.inputs if v is not None)
    return any(v.dtype is not None and v.dtype.name.startswith("FLOAT8") for v in values)


def _register(options: ort.SessionOptions, libraries: Sequence[Path]) -> None:
    for library in libraries:
        if not is_regular(library):
            raise CaseError(no_file(library), _LIBRARY)
        try:
            # The loader would look for a bare name in its own folders, not in this one.
            options.register_custom_ops_library(str(library.absolute()))
        except OrtFailure as error:
            raise CaseError(
                f"ONNX Runtime cannot load {library}: {_first_line(error)}",
                _LIBRARY,
            ) from error


def _not_loadable(model: ir.Model, error: Exception) -> CaseError:
    lacking = (n for n in model.graph.all_nodes() if not is_standard(n) and not has_operator(n))
    custom = sorted({f"{n.domain}::{n.op_type}" for n in lacking})
    missing = isinstance(error, ort_errors.NotImplemented) or _of_expansion(model, error)
    kind = KernelMissing if missing else GraphRefused if _is_refusal(error) else CaseError
    if custom:
        return kind(
            f"ONNX Runtime cannot run the model, which uses custom operators {', '.join(custom)}: "
            f"{_first_line(error)}",
            "Register the library that implements them: --ort-library PATH.",
        )
    return kind(
        f"ONNX Runtime cannot run the model: {_first_line(error)}",
        "Do what the message asks for; if it names an opset or IR version, export an older one.",
    )


def _too_large(error: Exception) -> RunFailed | None:
    """Return a failure that says how much memory was requested; None for other causes."""
    request = _NOT_ALLOCATED.search(str(error))
    if not request and not isinstance(error, MemoryError) and "bad_alloc" not in str(error):
        return None
    size = int(request[1]) if request else None
    what = "more memory" if size is None else f"{size_of(size)} of memory"
    node = _FAILED_NODE.search(str(error))
    where = f" for node {node[1]!r}" if node else ""
    free = memory.available()
    rest = ""
    # More may be available, but not to this process or not in one piece.
    if size is not None and free is not None and free < size:
        rest = f", but only {size_of(free)} are available"
    return RunFailed(
        f"ONNX Runtime asked for {what}{where}{rest}.",
        "Give smaller inputs, or check the sizes that the model computes.",
        node=node[1] if node else "",
    )


def _of_expansion(model: ir.Model, error: Exception) -> bool:
    """Return whether ONNX Runtime complains about a node that it created itself.

    It validates the graph, types included, before it looks for kernels. Then it expands operators
    that have no kernel but that ONNX defines as functions, and the expansion may be invalid: Clip
    13 becomes a Where 9, which takes no BF16. Nodes of expansions have no names.
    """
    return " node ()" in _first_line(error) and all(n.name for n in model.graph.all_nodes())


def _is_refusal(error: Exception) -> bool:
    """Return whether ONNX Runtime finds the graph invalid.

    Contradicting types that it finds late are not an InvalidGraph, but say "Type Error"
    (onnxruntime, graph.cc).
    """
    return isinstance(error, ort_errors.InvalidGraph) or "Type Error: " in str(error)


def _first_line(error: Exception) -> str:
    return said(_CODE.sub("", str(error)))


def said(message: str) -> str:
    """Return the first line of a message of ONNX Runtime, without places in its source."""
    return excerpt(_SOURCE.sub("", message.partition("\n")[0]))
