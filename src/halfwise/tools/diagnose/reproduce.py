"""Build an engine of model.onnx, run it on inputs.npz, and compare with expected.npz.

    python reproduce.py

Needs Python >= 3.8, tensorrt >= 8.5, NumPy and an NVIDIA driver. Exits with 0 if the engine is
right, with 1 if it is wrong, cannot be built, or cannot finish a run, and with 2 if that is
unknown, since a requirement is missing or fails; a crash of the builder ends the process.
"""

import ctypes
import os
import sys

try:
    import numpy as np
    import tensorrt as trt
except (ImportError, OSError) as error:
    if __name__ != "__main__":
        raise
    print("No result: this needs NumPy and tensorrt: {}.".format(error), file=sys.stderr)
    sys.exit(2)

SETTINGS = {"limit_db": 60.0}  # replaced where this file is written
HERE = os.path.dirname(os.path.abspath(__file__))


class Cuda:
    """The parts of the driver library needed here."""

    def __init__(self):
        """Take the first device."""
        name = os.environ.get("HALFWISE_CUDA_LIBRARY") or "libcuda.so.1"
        self.library = ctypes.CDLL(name)
        self.call("cuInit", 0)
        device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(stream), 0)
        self.stream = stream

    def call(self, name, *arguments):
        """Call a function, which must return 0."""
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError("{} returned error {}".format(name, status))

    def memory(self, size):
        """Return the address of device memory, and host memory to copy to it."""
        device, host = ctypes.c_uint64(), ctypes.c_void_p()
        self.call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(max(1, size)))
        self.call("cuMemAllocHost_v2", ctypes.byref(host), ctypes.c_size_t(max(1, size)))
        return device, host

    def copy(self, name, target, source, size):
        """Copy `size` bytes, if there are any."""
        if size:
            self.call(name, target, source, ctypes.c_size_t(size), self.stream)


def build(logger):
    """Return the serialised engine."""
    builder = trt.Builder(logger)
    flags = 0
    for name in ("EXPLICIT_BATCH", "STRONGLY_TYPED" if SETTINGS.get("strong") else ""):
        member = getattr(trt.NetworkDefinitionCreationFlag, name, None) if name else None
        flags |= 0 if member is None else 1 << int(member)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(os.path.join(HERE, "model.onnx")):
        for i in range(parser.num_errors):
            print(parser.get_error(i))
        return None
    config = builder.create_builder_config()
    if not SETTINGS.get("tf32"):
        config.clear_flag(trt.BuilderFlag.TF32)
    if SETTINGS.get("low") and not SETTINGS.get("strong"):
        config.set_flag(getattr(trt.BuilderFlag, SETTINGS["low"].upper()))
    if SETTINGS.get("optimization_level") is not None:
        config.builder_optimization_level = SETTINGS["optimization_level"]
    if SETTINGS.get("tactic_sources") is not None:
        sources = [getattr(trt.TacticSource, name) for name in SETTINGS["tactic_sources"]]
        config.set_tactic_sources(sum(1 << int(source) for source in sources))
    return builder.build_serialized_network(network, config)


def run(cuda, plan, logger, inputs):
    """Return the outputs by name; None if the engine does not finish."""
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    context = None if engine is None else engine.create_execution_context()
    if context is None:
        return None
    outputs = {}
    for i in range(engine.num_io_tensors):
        name = engine.get_tensor_name(i)
        dtype = np.dtype(trt.nptype(engine.get_tensor_dtype(name)))
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            array = np.ascontiguousarray(inputs[name], dtype)
            context.set_input_shape(name, array.shape)
            device, host = cuda.memory(array.nbytes)
            ctypes.memmove(host, array.tobytes(), array.nbytes)
            cuda.copy("cuMemcpyHtoDAsync_v2", device, host, array.nbytes)
        else:
            shape = tuple(context.get_tensor_shape(name))
            size = int(np.prod(shape)) * dtype.itemsize
            device, host = cuda.memory(size)
            outputs[name] = (device, host, size, shape, dtype)
        context.set_tensor_address(name, device.value)
    # From here on, failures are the engine's.
    cuda.call("cuStreamSynchronize", cuda.stream)
    if not context.execute_async_v3(cuda.stream.value):
        return None
    try:
        for device, host, size, _, _ in outputs.values():
            cuda.copy("cuMemcpyDtoHAsync_v2", host, device, size)
        cuda.call("cuStreamSynchronize", cuda.stream)
    except RuntimeError as error:
        print(error)
        return None
    return {
        name: np.frombuffer(ctypes.string_at(host, size), dtype).reshape(shape)
        for name, (_, host, size, shape, dtype) in outputs.items()
    }


def snr_db(expected, found):
    """Return 20 log10 of RMS over RMS error; -inf if it is not finite."""
    wanted, got = expected.astype(np.float64), found.astype(np.float64)
    noise, signal = np.sum(np.square(got - wanted)), np.sum(np.square(wanted))
    if not np.isfinite(noise) or (noise and not signal):
        return -np.inf
    return np.inf if not noise else 10 * np.log10(signal / noise)


def main():
    """Report the engine's result."""
    print("TensorRT {}, {}".format(trt.__version__, SETTINGS))
    cuda = Cuda()
    logger = trt.Logger(trt.Logger.WARNING)
    plan = build(logger)
    if plan is None:
        print("The engine cannot be built.")
        return 1
    inputs = np.load(os.path.join(HERE, "inputs.npz"))
    expected = np.load(os.path.join(HERE, "expected.npz"))
    # The first stored axis counts samples.
    found = run(cuda, plan, logger, {name: inputs[name][0] for name in inputs.files})
    if found is None:
        print("The engine fails to run.")
        return 1
    wrong = False
    for name in expected.files:
        snr = snr_db(expected[name][0], found[name])
        wrong = wrong or snr < SETTINGS["limit_db"]
        print("{}: {:.1f} dB".format(name, snr))
    print("wrong" if wrong else "right")
    return int(wrong)


if __name__ == "__main__":
    try:
        code = main()
    except Exception as error:  # 1 would say that the engine is wrong
        name = type(error).__name__
        print("No result: {}: {}.".format(name, error), file=sys.stderr)
        code = 2
    sys.exit(code)
