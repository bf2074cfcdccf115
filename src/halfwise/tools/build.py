"""`build` and `inspect`: an engine as requested, or a given one, and what it turned out to be."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Unpack

import numpy as np
import onnx_ir as ir

from halfwise.case import EngineSettings, Sample, Samples
from halfwise.declarations import BuildingOptions, Inputs, WorkerOptions, default
from halfwise.emulation.runner import running
from halfwise.errors import BuildFailed, CaseError, UsageError
from halfwise.fixing.engines import measure
from halfwise.fixing.engines.device import Builds
from halfwise.formats import FP16, LOW_FORMATS
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles, roles_of
from halfwise.graph.weights import save
from halfwise.inputs import InputSpec, load_inputs
from halfwise.options.engines import engine_target
from halfwise.options.loading import input_specs, load_model, load_settled, rank_inputs, tell
from halfwise.options.options import Model, capability
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    AheadBuild,
    BuildOutcome,
    EngineBuild,
    EngineFile,
    Inspection,
    Latency,
    NodeName,
    Precision,
    PrecisionProof,
    Profile,
    TensorName,
    replace,
)
from halfwise.scratch import scratch
from halfwise.store import new_file, refuse_existing
from halfwise.targets.runners import in_rtx
from halfwise.tensorrt.answers import Description, profiles_of
from halfwise.tensorrt.client import Worker, usable
from halfwise.tensorrt.constrain import quantised_types, readable
from halfwise.tensorrt.failures import EngineFailed, build_failed
from halfwise.tensorrt.layers import demand_engine, engine_layers
from halfwise.tensorrt.log import explain
from halfwise.tensorrt.ports import (
    check_covered,
    dtype_of,
    dynamic_inputs,
    profile_of,
    profiles_from_data,
    profiles_from_options,
)
from halfwise.tensorrt.prove import prove
from halfwise.tensorrt.versions import regime
from halfwise.wording import either

To = Literal["fp32", "fp16", "bf16"]

_PRECISIONS: dict[ir.DataType, Precision] = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
}


def build(
    model: Model,
    out: str | Path,
    *,
    inputs: Inputs | None = None,
    to: To | None = None,
    preprocess: str | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[BuildingOptions],
) -> EngineBuild:
    """Build one engine as requested, without a search or a verdict.

    Args:
        model: ONNX model: path or proto. Strong typing uses its types.
        out: Engine file to write; must not exist.
        inputs: Samples: profiles are made to hold them, and the engine is inspected and timed on
            one; without samples, on zeros.
        to: The lowest format the builder may choose in weak typing; FP32 by default. INT8 comes
            with a quantised model's QuantizeLinear/DequantizeLinear pairs.
        preprocess: As in `Options`.
        watcher: Receives progress.
        options: See `BuildingOptions`.

    Raises:
        BuildFailed: there is no engine; the hint has everything the builder's log says.
        HalfwiseError: the model, the inputs, an option or the worker cannot be used.
    """
    watcher, path = watcher or Silent(), Path(out)
    target = engine_target(options)
    formats = ("fp32", *LOW_FORMATS)
    if to not in (None, *formats):
        raise UsageError(
            f"--to is {to!r}; expected {either(formats)}.",
            "INT8 comes with the pairs of a quantised model.",
        )
    network, samples, profiles = _loaded(path, model, inputs, preprocess, target.shapes, watcher)
    how = replace(target.settings, profiles=profiles)
    with usable(target.worker, watcher, exact=not how.tf32) as worker:
        return _built(worker, how, network, samples, path, watcher, to=to)


def _built(
    worker: Worker,
    settings: EngineSettings,
    network: Network,
    samples: Samples | None,
    out: Path,
    watcher: Watcher,
    *,
    to: To | None,
) -> EngineBuild:
    """Build and inspect the engine, and move it to `out`."""
    network = readable(network, worker.info.tensorrt)
    fmt = LOW_FORMATS.get(to or "", FP16)
    typing = regime(worker.info, settings.typing, fmt)
    if typing == "strong" and to is not None:
        raise UsageError(
            "--to does not apply with strong typing, where the model sets the types.",
            "Write a mixed model with `halfwise fix` and build that, or use --typing weak.",
        )
    roles = roles_of(network, low_type(fmt))
    watcher.stage("build")
    low = None if to == "fp32" else to
    requested = _types(network, roles) if typing == "strong" else {}
    with scratch() as folder:
        file = folder / "model.onnx"
        save(network.model, file)
        builds = Builds(worker, settings, typing, watcher)
        outcome = builds.build(file, out.name, low=low, tf32=settings.tf32)
    if outcome.engine is None:
        raise build_failed(outcome, "no engine of this model")
    watcher.stage("inspect")
    inspection = inspect_engine(
        worker,
        outcome.engine,
        samples,
        network=network,
        roles=roles,
        asked={**requested, **quantised_types(network)},
        build=outcome,
        timeout=settings.run_timeout,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with new_file(out) as partial:
        here = worker.fetch(outcome.engine, partial)
    here = replace(here, path=str(out))
    return EngineBuild(
        model=str(network.path or "in memory"),
        build=replace(outcome, engine=here),
        inspection=replace(inspection, engine=here),
        findings=explain(outcome.log),
    )


def build_ahead(
    model: Model,
    out: str | Path,
    *,
    sm: str = default("sm"),
    inputs: Inputs | None = None,
    preprocess: str | None = None,
    min_shapes: Sequence[str] = (),
    opt_shapes: Sequence[str] = (),
    max_shapes: Sequence[str] = (),
    watcher: Watcher | None = None,
) -> AheadBuild:
    """Build an engine of TensorRT for RTX, which needs no GPU and runs nothing.

    Args:
        model: ONNX model: path or proto; its types are those of the engine.
        out: Engine file to write; must not exist.
        sm: The compute capability that it is for.
        inputs: Samples that set the shapes; needed for dynamic axes unless shapes are given.
        preprocess: As in `Options`.
        min_shapes: As in `BuildingOptions`; the first profile counts.
        opt_shapes: Likewise.
        max_shapes: Likewise.
        watcher: Receives progress.

    Raises:
        BuildFailed: there is no engine.
        HalfwiseError: the model, the inputs, an option or the builder cannot be used.
    """
    watcher, out = watcher or Silent(), Path(out)
    rtx, shapes = in_rtx(capability(sm)), (min_shapes, opt_shapes, max_shapes)
    network, _, profiles = _loaded(out, model, inputs, preprocess, shapes, watcher)
    watcher.stage("build")
    with running([rtx]):
        try:
            build, folded = rtx.build(network.model, profiles)
        except CaseError as error:
            raise BuildFailed(
                f"TensorRT for RTX builds no engine of this model: {error.message}",
                "halfwise lint --target rtx names what it is known not to take.",
            ) from error
        assert build.engine is not None
        out.parent.mkdir(parents=True, exist_ok=True)
        with new_file(out) as partial:
            partial.write_bytes(build.engine)
        return AheadBuild(
            model=str(network.path or "in memory"),
            engine=str(out),
            bytes=len(build.engine),
            version=rtx.version,
            sm=rtx.sm,
            kernels=len(build.kernels),
            folded=folded,
            warnings=build.warnings,
        )


def _loaded(
    out: Path,
    model: Model,
    inputs: Inputs | None,
    preprocess: str | None,
    shapes: tuple[Sequence[str], Sequence[str], Sequence[str]],
    watcher: Watcher,
) -> tuple[Network, Samples | None, tuple[Profile, ...]]:
    """Return the model, the samples if there are inputs, and the profiles; `out` must not exist."""
    refuse_existing(out, "file")
    watcher.stage("load")
    network = load_model(model, watcher)
    if inputs is None:
        profiles = profiles_from_options(network, None, *shapes)
        if (free := dynamic_inputs(network)) and not profiles:
            raise UsageError(
                f"Input {free[0]!r} has a dynamic axis, and no sizes are given for the engine.",
                "Give --inputs, or --engine maxShapes=NAME:1x3x224x224 and minShapes likewise.",
            )
        return network, None, profiles
    read = partial(load_inputs, inputs, preprocess=preprocess)
    loaded, _ = load_settled(network, input_specs(network), read)
    samples = loaded.samples
    tell(watcher, (*loaded.notes, *rank_inputs(network, samples)))
    profiles = profiles_from_options(network, samples, *shapes)
    profiles = profiles or profiles_from_data(network, samples)
    check_covered(profiles, samples)
    return network, samples, profiles


def _types(network: Network, roles: Roles) -> Mapping[NodeName, Precision]:
    """Return the types the model declares for its compute nodes."""
    declared: dict[NodeName, Precision] = {}
    for node in network.all_nodes():
        types = [_PRECISIONS[v.dtype] for v in node.outputs if v.dtype in _PRECISIONS]
        if types and roles[node_name(node)].role is Role.COMPUTE:
            declared[node_name(node)] = types[0]
    return declared


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
    here = replace(file, side="here", path=str(path))
    return replace(inspection, engine=here)


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
        text = worker.inspect(engine, profile, feeds, timeout)
        config = None if build is None else build.config
        layers = engine_layers(text, network, tf32=config is None or config.tf32)
        proof = prove(layers, network, roles, asked or {}, config)
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
