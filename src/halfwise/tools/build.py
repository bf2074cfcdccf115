"""Build an engine as requested, and inspect it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, Unpack

import onnx_ir as ir

from halfwise.case import EngineSettings, Samples
from halfwise.declarations import BuildingOptions, Inputs, default
from halfwise.errors import BuildFailed, CaseError, UsageError
from halfwise.fixing.engines.workbench import Builds
from halfwise.formats import FP16, LOW_FORMATS
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles, roles_of
from halfwise.graph.weights import save
from halfwise.inputs import load_inputs
from halfwise.options.engines import engine_target
from halfwise.options.loading import input_specs, load_model, load_settled, rank_inputs, tell
from halfwise.options.options import Model, capability
from halfwise.progress import Silent, Watcher
from halfwise.records import AheadBuild, EngineBuild, NodeName, Precision, Profile
from halfwise.scratch import scratch
from halfwise.store import new_file, refuse_existing
from halfwise.targets.runners import in_rtx, running
from halfwise.tensorrt.client import Worker, usable
from halfwise.tensorrt.constrain import (
    quantised_types,
    readable,
)
from halfwise.tensorrt.failures import build_failed
from halfwise.tensorrt.log import explain
from halfwise.tensorrt.ports import check_covered, profiles_from_data, profiles_from_options
from halfwise.tensorrt.versions import regime
from halfwise.tools.inspect import inspect_engine
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
    here = here.model_copy(update={"path": str(out)})
    return EngineBuild(
        model=str(network.path or "in memory"),
        build=outcome.model_copy(update={"engine": here}),
        inspection=inspection.model_copy(update={"engine": here}),
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
        inputs: Samples that set the shapes; without them and shapes, dynamic axes are 1 to 8.
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
        return network, None, profiles_from_options(network, None, *shapes)
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
