"""Look into an engine that is there already."""

from pathlib import Path
from typing import Unpack

from halfwise.case import Samples
from halfwise.fixing.engines import inspect_engine
from halfwise.formats import FP16
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.inputs import InputSpec
from halfwise.options.engines import WorkerOptions, engine_target
from halfwise.options.loading import input_specs, load_inputs, load_model
from halfwise.options.options import Data, Inputs, Model
from halfwise.progress import Silent, Watcher
from halfwise.records import Inspection
from halfwise.tensorrt.engine.fitting import dtype_of
from halfwise.tensorrt.engine.plans import demand_engine
from halfwise.tensorrt.worker.described import Description
from halfwise.tensorrt.working import usable


def inspect(
    engine: str | Path,
    *,
    model: Model | None = None,
    inputs: Inputs | None = None,
    preprocess: str | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[WorkerOptions],
) -> Inspection:
    """Return inputs, outputs, layers, precision and speed of an engine.

    Args:
        engine: The engine file.
        model: The ONNX model that it was built from: then precision is told node by node.
        inputs: Samples, of which one is run; zeros without.
        preprocess: As in `Options`.
        watcher: Is told about progress.
        options: See `WorkerOptions`.

    Raises:
        RecordMismatch: TensorRT there cannot read the engine.
        HalfwiseError: the model, the inputs, an option or the worker cannot be used.
    """
    watcher, path = watcher or Silent(), demand_engine(Path(engine))
    target = engine_target({name: value for name, value in options.items() if value is not None})
    timeout = target.settings.run_timeout
    network = None if model is None else load_model(model)
    with usable(target.workers[0], watcher, target.settings.wait_timeout) as worker:
        watcher.stage("inspect")
        file = worker.upload(path)
        described = worker.describe(file, timeout)
        samples: Samples | None = None
        if inputs is not None:
            data = Data(inputs, None, preprocess)
            samples = load_inputs(inputs, _specs(network, described), data).samples
        found = inspect_engine(
            worker,
            file,
            samples,
            network=network,
            roles=None if network is None else roles_of(network, low_type(FP16)),
            timeout=timeout,
        )
    here = file.model_copy(update={"side": "here", "path": str(path)})
    return found.model_copy(update={"engine": here})


def _specs(network: Network | None, engine: Description) -> list[InputSpec]:
    """Return what the model's inputs expect, or without one those of the engine."""
    if network is not None:
        return input_specs(network)
    return [
        InputSpec(t.name, dtype_of(t.dtype), tuple(None if n < 0 else n for n in t.shape))
        for t in engine.tensors
        if t.is_input
    ]
