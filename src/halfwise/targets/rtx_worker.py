"""Builds models with TensorRT for RTX: requests and answers are frames of the TensorRT worker.

A request has `model`, `sm`, `shapes`, and files to write: `log`, `engine`. The answer has `parsed`,
`errors`, `warnings`. One without a model gets the `version`.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

try:
    import tensorrt_rtx as trt
except ImportError:
    try:
        import tensorrt_rtx_bindings as trt
    except ImportError as error:
        sys.exit(str(error))

# This Python need not have halfwise.
sys.path.insert(0, str(Path(__file__).parents[1] / "tensorrt"))
from worker import pack, read_frame  # type: ignore[import-not-found]

SPAN = 8
"""The usual and largest length of an axis that no request bounds."""


class Log(trt.ILogger):  # type: ignore[misc]
    """Keeps all messages of one build: (severity, text)."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.messages: list[tuple[Any, str]] = []

    def log(self, severity: Any, text: str) -> None:
        self.messages.append((severity, text))

    def texts(self, *severities: Any) -> list[str]:
        return [text for severity, text in self.messages if severity in severities]


def answer(builder: Any, log: Log, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request; write the log and the engine."""
    log.messages.clear()
    if "model" not in request:
        return {"version": trt.__version__}
    typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(typed)
    parser = trt.OnnxParser(network, log)
    parsed = parser.parse_from_file(request["model"])
    errors = [] if parsed else [refusal(parser.get_error(i)) for i in range(parser.num_errors)]
    if parsed:
        engine = builder.build_serialized_network(network, configuration(builder, network, request))
        if engine is not None:
            Path(request["engine"]).write_bytes(engine)
        else:
            texts = log.texts(trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)
            errors = [{"text": text} for text in texts]
    Path(request["log"]).write_text("\n".join(t for _, t in log.messages), encoding="utf-8")
    return {"parsed": parsed, "errors": errors, "warnings": log.texts(trt.ILogger.WARNING)}


def configuration(builder: Any, network: Any, request: dict[str, Any]) -> Any:
    """Return how to build: exact FP32, for one GPU, with a log that names kernels."""
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, request["sm"]), 0)
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        given = request["shapes"].get(tensor.name)
        if tensor.is_shape_tensor and given:
            profile.set_shape_input(tensor.name, *given)
        elif -1 in tensor.shape:
            profile.set_shape(tensor.name, *(given or span(tensor.shape)))
    config.add_optimization_profile(profile)
    return config


def span(shape: Any) -> list[list[int]]:
    """Return the least, usual and largest shape where no request says."""
    return [[n if d == -1 else d for d in shape] for n in (1, SPAN, SPAN)]


def refusal(error: Any) -> dict[str, str]:
    """Return an error of the parser."""
    return {"text": error.desc(), "node": error.node_name(), "operator": error.node_operator()}


def main() -> None:
    """Answer requests until there are no more."""
    # A build may take minutes: it ends with who asked (Linux: PR_SET_PDEATHSIG of prctl(2)).
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    log = Log()
    builder = trt.Builder(log)
    while frame := read_frame(sys.stdin.buffer):
        told = answer(builder, log, frame[0])
        sys.stdout.buffer.write(pack({**told, "id": frame[0]["id"], "kind": "result"}))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
    # Without a driver, the library's own end may crash.
    os._exit(0)
