"""Engines at run time: deserialising, binding tensors, running."""

import ctypes
import os
from functools import lru_cache
from typing import Any

import numpy as np

from tests.fake_tensorrt import faults
from tests.fake_tensorrt.enums import NUMPY, Severity, TensorFormat, TensorIOMode, TensorLocation
from tests.fake_tensorrt.inspector import EngineInspector
from tests.fake_tensorrt.logger import need_logger
from tests.fake_tensorrt.network import dims, shape_values
from tests.fake_tensorrt.plan import Unreadable, unpack_engine
from tests.fake_tensorrt.versions import NUMBERS, Callback, bound


class IProfiler(Callback):
    def report_layer_time(self, layer_name, ms):
        raise NotImplementedError


class IOutputAllocator(Callback):
    def reallocate_output(self, tensor_name, memory, size, alignment):
        raise NotImplementedError

    def notify_shape(self, tensor_name, shape):
        raise NotImplementedError


@bound
class Runtime:
    engine_host_code_allowed = False
    max_threads = 1
    error_recorder = None

    def __init__(self, logger):
        self._logger = need_logger(logger)

    def deserialize_cuda_engine(self, serialized_engine):
        try:
            plan, _ = unpack_engine(bytes(serialized_engine))
            about = {"low": plan.low, "tf32": plan.tf32, "typing": plan.typing}
            faults.strike("deserialise", about)
        except (Unreadable, faults.Failure) as error:
            self._logger.log(Severity.ERROR, str(error))
            self._logger.log(
                Severity.ERROR,
                "4: [runtime.cpp::deserializeCudaEngine::66] Error Code 4: Internal Error (Engine "
                "deserialization failed.)",
            )
            return None
        return ICudaEngine(self._logger, _program(bytes(serialized_engine)))


@lru_cache(maxsize=8)
def _program(data):
    """Return what an engine computes; engines take turns, and to prepare one takes a while."""
    # Only here: it takes a second to import.
    from tests.fake_tensorrt.program import Program

    return Program(*unpack_engine(data))


@bound
class ICudaEngine:
    name = "fake"
    has_implicit_batch_dimension = False
    hardware_compatibility_level = None
    error_recorder = None
    refittable = False

    def __init__(self, logger, program):
        self._logger, self._program = logger, program
        graph = program.graph
        self._inputs = {v.name: v for v in graph.inputs}
        self._outputs = {name: program.values[name] for name in program.plan.outputs}
        self._io = (*self._inputs, *(n for n in self._outputs if n not in self._inputs))
        self._shapes = {v.name for v in shape_values(graph)} & set(self._inputs)

    @property
    def num_io_tensors(self):
        return len(self._io)

    def get_tensor_name(self, index):
        return self._io[index]

    def get_tensor_mode(self, name):
        if name not in self._io:
            return TensorIOMode.NONE
        return TensorIOMode.INPUT if name in self._inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name):
        return self._program.io_type(name)

    def get_tensor_shape(self, name):
        return dims(self._program.values[name])

    def get_tensor_location(self, name):
        return TensorLocation.HOST if name in self._shapes else TensorLocation.DEVICE

    def is_shape_inference_io(self, name):
        return name in self._shapes

    def get_tensor_format(self, name, profile_index=0):
        return TensorFormat.LINEAR

    def get_tensor_format_desc(self, name, profile_index=0):
        return "Row major linear format"

    def get_tensor_profile_shape(self, name, profile_index):
        return list(self._limits(name, profile_index))

    # The bindings' own names of these two are the wrong way round, too.
    def get_tensor_profile_values(self, name: int, profile_index: str):
        return [list(v) for v in self._limits(profile_index, name)]

    def _limits(self, name, profile):
        if not 0 <= profile < self.num_optimization_profiles:
            raise RuntimeError(f"there is no optimization profile {profile}")
        limits = {} if not self._program.plan.profiles else self._program.plan.profiles[profile]
        fixed = dims(self._inputs[name])
        return [tuple(shape) for shape in limits.get(name, (fixed, fixed, fixed))]

    @property
    def num_optimization_profiles(self):
        return max(1, len(self._program.plan.profiles))

    @property
    def num_layers(self):
        return len(self._program.layers)

    @property
    def device_memory_size(self):
        return 4096 + self._program.weight_bytes

    @property
    def device_memory_size_v2(self):
        return 4096 + self._program.weight_bytes

    def serialize(self):
        raise NotImplementedError("the fake serialises in the builder only")

    def create_engine_inspector(self):
        return EngineInspector(self._program)

    def create_execution_context(self):
        try:
            faults.strike("context")
        except faults.Failure as failure:
            self._logger.log(Severity.ERROR, str(failure))
            return None
        return IExecutionContext(self)


@bound
class IExecutionContext:
    name = "fake"
    error_recorder = None
    enqueue_emits_profile = True
    profiler: Any = None

    def __init__(self, engine):
        self._engine, self._program, self._logger = engine, engine._program, engine._logger
        self._profile = 0
        self._sizes = {n: dims(v) for n, v in engine._inputs.items() if -1 not in dims(v)}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._ran = False
        self._number = faults.tick("contexts")

    @property
    def engine(self):
        return self._engine

    @property
    def active_optimization_profile(self):
        return self._profile

    def set_optimization_profile_async(self, profile_index, stream_handle):
        if not 0 <= profile_index < self._engine.num_optimization_profiles:
            return self._wrong(f"there is no optimization profile {profile_index}")
        self._profile = profile_index
        return True

    def _wrong(self, text):
        self._logger.log(
            Severity.ERROR, f"3: [executionContext.cpp] Error Code 3: API Usage Error ({text})"
        )
        return False

    def set_input_shape(self, name, shape):
        shape = tuple(int(n) for n in shape)
        if name not in self._engine._inputs:
            return self._wrong(f"Given invalid tensor name: {name}")
        declared = dims(self._engine._inputs[name])
        if len(shape) != len(declared):
            return self._wrong(f"{name} has {len(declared)} dimensions, not {len(shape)}")
        limits = (declared,) * 3
        if name not in self._engine._shapes:
            limits = self._engine._limits(name, self._profile)
        for axis, size in enumerate(shape):
            low, high = limits[0][axis], limits[2][axis]
            if not (low <= size <= high or low == high == -1):
                return self._wrong(
                    "Parameter check failed at: executionContext.cpp::setInputShape::2278, "
                    f"condition: engineDims.d[i] == dims.d[i]. Supplied binding dimension {shape} "
                    f"for {name} exceed min ~ max range at index {axis}, maximum dimension in "
                    f"profile is {high}, minimum dimension in profile is {low}, but supplied "
                    f"dimension is {size}"
                )
        self._sizes[name] = shape
        return True

    def set_tensor_address(self, name, memory):
        if name not in self._engine._io:
            return self._wrong(f"Given invalid tensor name: {name}")
        self._addresses[name] = int(memory)
        return True

    def get_tensor_address(self, name):
        return self._addresses.get(name, 0)

    def infer_shapes(self):
        missing = [name for name in self._engine._inputs if name not in self._sizes]
        return missing + [n for n in self._engine._shapes if n not in self._addresses]

    def get_tensor_shape(self, name):
        if name in self._engine._inputs:
            return self._sizes.get(name, dims(self._engine._inputs[name]))
        if self.infer_shapes():
            return dims(self._engine._outputs[name])
        values = {n: self._read(n) for n in sorted(self._engine._shapes)}
        return self._program.shapes(self._sizes, values)[name]

    def get_tensor_strides(self, name):
        shape = self.get_tensor_shape(name)
        return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))

    def get_max_output_size(self, name):
        shape = self.get_tensor_shape(name)
        return int(np.prod(shape)) * NUMPY[self._engine.get_tensor_dtype(name)].itemsize

    def set_output_allocator(self, name, output_allocator):
        if self._engine.get_tensor_mode(name) is not TensorIOMode.OUTPUT:
            return self._wrong(f"{name} is no output")
        self._allocators[name] = IOutputAllocator.check(output_allocator)
        return True

    def _read(self, name):
        kind, shape = NUMPY[self._engine.get_tensor_dtype(name)], self._sizes[name]
        size = int(np.prod(shape)) * kind.itemsize
        data = ctypes.string_at(self._addresses[name], size) if size else b""
        return np.frombuffer(data, kind).reshape(shape)

    def execute_async_v2(self, bindings, stream_handle, input_consumed=None):
        raise NotImplementedError("the fake runs execute_async_v3 only")

    def execute_async_v3(self, stream_handle):
        if missing := self.infer_shapes():
            return self._wrong(f"Not all shapes are specified: {missing}")
        unbound = [
            n for n in self._engine._io if n not in self._addresses and n not in self._allocators
        ]
        if unbound:
            return self._wrong(f"Address is not set for tensor {unbound[0]}")
        plan = self._program.plan
        try:
            about = {"low": plan.low, "tf32": plan.tf32, "typing": plan.typing}
            faults.strike("run", about)
            if self._ran:  # as it does to be timed
                faults.strike("again", about)
            self._ran = True
        except faults.Failure as failure:
            self._logger.log(Severity.ERROR, str(failure))
            return False
        found = self._program.run({name: self._read(name) for name in self._engine._inputs})
        self._pass_time()
        for name in self._engine._outputs:
            self._deliver(name, found[name])
        self._report()
        return True

    def _deliver(self, name, array):
        data = np.ascontiguousarray(array).tobytes()
        address = self._addresses.get(name, 0)
        allocator = self._allocators.get(name)
        if allocator is not None:
            if NUMBERS >= (10,) and hasattr(allocator, "reallocate_output_async"):
                address = allocator.reallocate_output_async(name, address, len(data), 256, 0)
            else:
                address = allocator.reallocate_output(name, address, len(data), 256)
            allocator.notify_shape(name, array.shape)
        if data:
            ctypes.memmove(address, data, len(data))

    def _pass_time(self):
        jitter = faults.knob("PACE", {}).get("jitter", 0.0)
        # How often a worker runs an engine to time it, the clock decides; how often it binds one
        # does not.
        factor = 1 + jitter * np.sin(self._number)
        passed = ctypes.c_double(factor * sum(self._program.milliseconds.values()))
        ctypes.CDLL(os.environ["HALFWISE_CUDA_LIBRARY"]).halfwise_pass_time(passed)

    def _report(self):
        if self.profiler is None:
            return
        Callback.check(self.profiler)
        for name, share in self._program.milliseconds.items():
            self.profiler.report_layer_time(name, share)

    def report_to_profiler(self):
        return True
