"""Make the mixed model: raise its opset if needed, add Casts, record its ends, write its file."""

from contextlib import suppress
from pathlib import Path

import onnx
import onnx_ir as ir
from msgspec import Struct

from halfwise.case import CPU, FEW_SAMPLES, Case, Runtime, Samples, Settings
from halfwise.emulation.accumulate import MIN_OPSET, has_sum
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import mark_tf32
from halfwise.errors import BuildFailed, CaseError, KernelMissing, RunFailed
from halfwise.fixing.int8.placing import FIRST_OPSET, QuantisedModel
from halfwise.formats import BF16, ROUNDINGS, Format
from halfwise.graph.casts import Rewritten, is_low_custom
from halfwise.graph.casts import rewrite as cast
from halfwise.graph.conversion import BF16_OPSET, gaining, raise_opset
from halfwise.graph.intake import checkable, checked
from halfwise.graph.model import Network, is_standard
from halfwise.graph.movement import Following
from halfwise.graph.protobufs import said, skeleton
from halfwise.graph.roles import Roles
from halfwise.graph.weights import LowWeights, map_files, save
from halfwise.judging.reference import inspected_reference
from halfwise.metrics import Outputs
from halfwise.metrics.difference import is_close
from halfwise.progress import Watcher
from halfwise.records import NodeName, Remark, TensorName, replace
from halfwise.reporting.remarks import remark


def rewrite(
    network: Network,
    roles: Roles,
    assignment: frozenset[NodeName],
    fmt: Format,
    *,
    fixed: frozenset[NodeName],
    low_io: frozenset[TensorName],
    weights: LowWeights | None = None,
    bf16: frozenset[NodeName] = frozenset(),
    tf32: bool = False,
) -> Rewritten:
    """Return the mixed model.

    Args:
        network: FP32 model.
        roles: Roles of its nodes.
        assignment: All free nodes that are FP32 or BF16.
        fmt: The low format.
        fixed: Data movement nodes whose precision a user rule sets.
        low_io: Float graph inputs and outputs that get the low type.
        weights: The network's weights in the low format, if already made.
        bf16: Those of them that are BF16.
        tf32: Whether FP32 products are TF32.
    """
    bf16 = Following(network, roles)(assignment - fixed, bf16)
    fp32 = assignment - bf16
    made = cast(network, roles, fp32, fmt, low_io=low_io, weights=weights, bf16=bf16)
    mark_tf32(made.model.graph, allowed=tf32)
    return made


def save_checked(
    model: ir.Model,
    path: Path,
    *,
    runtime: Runtime = CPU,
    foreign: bool = False,
    ran: bool = False,
) -> None:
    """Write `model` to `path`; check that the file is valid and loads, unless it is `foreign`.

    A foreign one has operators that ONNX Runtime lacks; only the checker sees it. Nor is a
    model loaded again that ONNX Runtime `ran`.

    The reference loaded, so a kernel that ONNX Runtime lacks now is one for a low type: its CPU
    provider has few for BF16. Such a file counts as valid: ONNX Runtime checks the graph and its
    types before it looks up kernels, and expands functions without one.

    Raises:
        BuildFailed: the ONNX checker with full shape inference, or ONNX Runtime, rejects it. That
            is a bug in halfwise.
    """
    save(model, path)
    try:
        written = ir.load(path)
        map_files(written)
        graph = skeleton(written)[0]
        if foreign:
            onnx.checker.check_model(checkable(graph, any_operator=True))
            return
        if all(is_standard(n) for n in model.graph.all_nodes()):
            checked(graph)
        else:
            onnx.checker.check_model(checkable(graph))
        if ran:
            return
        # A rule says another runtime has them in a low type; a library here need not.
        with suppress(CaseError if any(map(is_low_custom, written.graph)) else KernelMissing):
            Session(written, runtime=runtime)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, CaseError) as error:
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        raise BuildFailed(
            f"The rewritten model is not valid: {said(error)}",
            "This is a fault of halfwise; please report it with the model's operators and opset.",
        ) from error


def with_opset_for(
    fmt: Format,
    network: Network,
    samples: Samples,
    *,
    runtime: Runtime = CPU,
    int8: bool = False,
    low_sums: bool = False,
) -> tuple[Network, Remark | None]:
    """Return `network` at an opset whose operators take `fmt`, and a remark on the change.

    If nothing is gained, it returns the network unchanged, without a remark: if all operators take
    `fmt`, unless its opset is too old for `int8`. It returns it with a remark if ONNX cannot raise
    the opset, or if the outputs of both models on up to 4 samples differ by more than 1e-6 of an
    output's largest magnitude: then operators stay FP32 that could otherwise be low.

    Args:
        fmt: The low format.
        network: A network whose reference runs.
        samples: At least one.
        runtime: Where to run.
        int8: Whether nodes are to read INT8 with a scale per channel.
        low_sums: Whether sums in FP16 are to be emulated.
    """
    needs = [(BF16_OPSET, ("low", fmt.name), gaining(network))] if fmt == BF16 else []
    if int8:
        pair = "QuantizeLinear and DequantizeLinear with an axis"
        needs.append((FIRST_OPSET, ("low", "int8"), (pair,)))
    if low_sums:
        summing = sorted({n.op_type for n in network.all_nodes() if has_sum(n)})
        needs.append((MIN_OPSET, ("sums", "fp16"), tuple(summing)))
    needs = [need for need in needs if need[0] > network.opset and need[-1]]
    if not needs:
        return network, None
    opset, (what, precision), operators = max(needs)
    names = {what: precision, "operators": ", ".join(operators)}
    first = samples.select(range(min(FEW_SAMPLES, len(samples))))
    try:
        raised = raise_opset(network, opset)
        _demand_same(network, raised, first, runtime)
    except (CaseError, RunFailed) as error:
        names |= {"why": error.message}
        return network, Remark(kind="opset-stays", names=names, numbers={"opset": network.opset})
    numbers = {"opset": network.opset, "raised": opset, "samples": len(first)}
    return raised, Remark(kind="opset-raised", names=names, numbers=numbers)


def _demand_same(network: Network, raised: Network, samples: Samples, runtime: Runtime) -> None:
    sessions = [Session(n.model, runtime=runtime) for n in (network, raised)]
    for sample in samples:
        before, after = (session.run(sample) for session in sessions)
        if not same(before, after):
            raise CaseError(
                f"Raised to opset {raised.opset}, the model computes something else.",
                "Export the model at that opset.",
            )


def same(before: Outputs, after: Outputs) -> bool:
    """Return whether outputs have equal shapes, types and, within `ROUNDINGS`, values.

    Outputs that are not floating point have to be equal; so do NaN and infinities.
    """
    return before.keys() == after.keys() and all(
        array.dtype == after[name].dtype and is_close(after[name], array, ROUNDINGS)
        for name, array in before.items()
    )


class Prepared(Struct, frozen=True):
    """Input of a run.

    Attributes:
        case: With the network that plans are for.
        original: The reference network.
        searched: Outputs of the network to plan for on the calibration samples, if it is not
            `original`; else None.
        notes: Changes made to it.
    """

    case: Case
    original: Network
    searched: list[Outputs] | None = None
    notes: tuple[Remark, ...] = ()


def prepare(
    case: Case, quantised: QuantisedModel | None, settings: Settings, watcher: Watcher
) -> Prepared:
    """Return the case with the network to plan for.

    Args:
        case: With the user's model.
        quantised: The quantised model to start from; plans are then of its nodes.
        settings: The types, and where to run.
        watcher: Receives notes on the changes.

    Raises:
        RunFailed: the model does not run on a sample.
    """
    network, runtime = case.network, settings.runtime
    if quantised is not None:
        searched = inspected_reference(network, case.calibration, runtime=runtime)[0]
        return Prepared(replace(case, network=quantised.floats, restored=True), network, searched)
    raised, note = with_opset_for(
        settings.fmt,
        network,
        case.calibration,
        runtime=runtime,
        int8=settings.int8,
        low_sums=settings.accumulate == "fp16",
    )
    if note is not None:
        watcher.note(remark(note))
    notes = () if note is None else (note,)
    return Prepared(replace(case, network=raised), raised, notes=notes)
