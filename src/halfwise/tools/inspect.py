"""Inspect an engine: inputs, outputs, precision, and time per layer."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np

from halfwise.case import Sample, Samples
from halfwise.declarations import Inputs, WorkerOptions
from halfwise.errors import CaseError
from halfwise.fixing.engines import measure
from halfwise.formats import FP16
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network
from halfwise.graph.roles import Roles, roles_of
from halfwise.inputs import InputSpec, load_inputs
from halfwise.options.engines import engine_target
from halfwise.options.loading import input_specs, load_model
from halfwise.options.options import Model
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    BuildOutcome,
    EngineFile,
    Inspection,
    Latency,
    NodeName,
    Precision,
    PrecisionProof,
    Profile,
    TensorName,
)
from halfwise.tensorrt.answers import Description, profiles_of
from halfwise.tensorrt.client import Worker, usable
from halfwise.tensorrt.constrain import quantised_types
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.layers import demand_engine, engine_layers
from halfwise.tensorrt.ports import check_covered, dtype_of, profile_of
from halfwise.tensorrt.prove import prove


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
        model: The ONNX model it was built from; adds the precision of each node.
        inputs: Samples; one is run. None: zeros.
        preprocess: As in `Options`.
        watcher: Receives progress.
        options: See `WorkerOptions`.

    Raises:
        RecordMismatch: the worker's TensorRT cannot read the engine.
        HalfwiseError: the model, the inputs, an option or the worker cannot be used.
    """
    watcher, path = watcher or Silent(), demand_engine(Path(engine))
    target = engine_target(options)
    timeout = target.settings.run_timeout
    network = None if model is None else load_model(model)
    with usable(target.worker, watcher) as worker:
        watcher.stage("inspect")
        file = worker.upload(path)
        described = worker.describe(file, timeout)
        samples: Samples | None = None
        if inputs is not None:
            specs = _specs(network, described)
            samples = load_inputs(inputs, specs, preprocess=preprocess).samples
        inspection = inspect_engine(
            worker,
            file,
            samples,
            network=network,
            roles=None if network is None else roles_of(network, low_type(FP16)),
            asked={} if network is None else quantised_types(network),
            timeout=timeout,
        )
    here = file.model_copy(update={"side": "here", "path": str(path)})
    return inspection.model_copy(update={"engine": here})


def _specs(network: Network | None, engine: Description) -> list[InputSpec]:
    """Return the specs of the model's inputs; without a model, of the engine's."""
    if network is not None:
        return input_specs(network)
    return [
        InputSpec(t.name, dtype_of(t.dtype), tuple(None if n < 0 else n for n in t.shape))
        for t in engine.tensors
        if t.is_input
    ]


ZEROS = "Inspected and timed on zeros at the opt shapes: give --inputs for real data."


def inspect_engine(
    worker: Worker,
    engine: EngineFile,
    samples: Samples | None,
    *,
    network: Network | None = None,
    roles: Roles | None = None,
    asked: Mapping[NodeName, Precision] | None = None,
    build: BuildOutcome | None = None,
    timeout: float | None = None,
) -> Inspection:
    """Inspect an engine; it runs once, and a few more times for timing.

    Args:
        worker: Worker that loads the engine.
        engine: The engine.
        samples: Real samples: the first at opt shapes, else the first. None: zeros, which do not
            change an engine's precision but give no verdict.
        network: The model it was built from, if known.
        roles: Roles of its nodes.
        asked: Precision requested for nodes.
        build: How it was built, if known.
        timeout: Seconds for each request.

    Raises:
        RecordMismatch: the worker cannot read the engine.
        CaseError: no profile holds a sample.
    """
    described = worker.describe(engine, timeout)
    profile, feeds = (0, zeros(described)) if samples is None else typical(described, samples)
    notes = [ZEROS] if samples is None else []
    proof: PrecisionProof | None = None
    latency: Latency | None = None
    try:
        text, milliseconds = worker.inspect(engine, profile, feeds, timeout)
        config = None if build is None else build.config
        layers = engine_layers(text, network, tf32=config is None or config.tf32)
        proof = prove(layers, network, roles, asked or {}, milliseconds, config)
        timed = partial(worker.time, seconds=measure.QUICK_SECONDS, warmup=measure.WARM_SECONDS)
        latency = timed(engine, profile, feeds, timeout, iterations=measure.TIMED_RUNS)
    except (EngineFailed, CaseError) as failed:
        if samples is not None:
            raise
        notes = [f"It does not run on zeros: {failed.message} Give --inputs."]
    return Inspection(
        worker=worker.info,
        engine=engine,
        tensors=described.tensors,
        layers=described.layers,
        proof=proof,
        latency=latency,
        notes=tuple(notes),
    )


def typical(engine: Description, samples: Samples) -> tuple[int, Sample]:
    """Return a profile and a sample for it: the first at opt shapes, else the first.

    Raises:
        CaseError: a sample lacks an input, or is outside every profile.
    """
    profiles = profiles_of(engine)
    names = {name for p in profiles for name in (*p.shapes, *p.values)}
    if missing := sorted(names - samples[0].keys()):
        raise CaseError(
            f"The inputs lack {', '.join(missing)}, which the engine needs.",
            "Give inputs of the model that this engine was built from.",
        )
    check_covered(profiles, samples)
    for sample in samples:
        for index, profile in enumerate(profiles):
            shapes = ((sample[name].shape, one.opt) for name, one in profile.shapes.items())
            if all(shape == opt for shape, opt in shapes) and profile_of((profile,), sample) == 0:
                return index, sample
    return profile_of(profiles, samples[0]) or 0, samples[0]


def zeros(engine: Description) -> dict[str, np.ndarray]:
    """Return zeros at the opt shapes of the first profile; shape tensors have their opt values.

    Raises:
        CaseError: an input's type has no NumPy equivalent here.
    """
    profile = next(iter(profiles_of(engine)), Profile())
    feeds: dict[str, np.ndarray] = {}
    for tensor in engine.tensors:
        if not tensor.is_input:
            continue
        shape, name = tensor.shape, TensorName(tensor.name)
        if name in profile.shapes:
            shape = profile.shapes[name].opt
        feeds[name] = np.zeros(shape, dtype_of(tensor.dtype))
        if tensor.shape_tensor and tensor.limits:
            # Known values repeat for unknown ones.
            feeds[name] = np.resize(np.asarray(tensor.limits[0].opt, feeds[name].dtype), shape)
    return feeds
