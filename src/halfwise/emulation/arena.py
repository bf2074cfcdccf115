"""Memory shared by all CPU sessions: one arena that returns unused memory.

By default, each ONNX Runtime session has its own arena, and keeps the memory of its largest run for
as long as it lives, although the sessions of a command take turns.
"""

import ctypes
import functools
from contextlib import suppress
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

_SPARE = 1 << 20
"""Bytes that a chunk may waste if it is less than twice as large as the request; with ONNX
Runtime's default of 128 MiB, a tensor of 65 MiB may take 128 (bfc_arena.h)."""

_SHARED = "session.use_env_allocators"
_GIVE_BACK = "memory.enable_memory_arena_shrinkage"
"""Run option: at its end, the arenas of these devices return their free memory."""


def share(options: ort.SessionOptions) -> None:
    """Make a session with `options` take its memory from the shared arena."""
    _register()
    options.add_session_config_entry(_SHARED, "1")


def give_back() -> None:
    """Return free memory of the arena and the heap to the system; later sessions take it again."""
    options = ort.RunOptions()
    options.add_run_config_entry(_GIVE_BACK, "cpu:0")
    _smallest().run(None, {"x": np.zeros(1, np.float32)}, options)
    with suppress(OSError, AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def own(result: Any) -> Any:  # noqa: ANN401 - a tensor, or what else a model may give
    """Return an array with its own memory: one inside the arena keeps the memory around it.

    Anything that is not an array is returned as it is.
    """
    return result.copy() if isinstance(result, np.ndarray) and not result.flags.owndata else result


@functools.cache
def _register() -> None:
    where = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    # A program that calls halfwise may have an arena for its own sessions already.
    with suppress(InvalidArgument, RuntimeError):
        ort.create_and_register_allocator(
            where, ort.OrtArenaCfg({"max_dead_bytes_per_chunk": _SPARE})
        )


@functools.cache
def _smallest() -> ort.InferenceSession:
    """Return a session whose run does nothing: the arena only shrinks at the end of a run."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    share(options)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
