"""`compare`: two computations of one model, tensor by tensor."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import Case, Settings
from halfwise.declarations import Inputs, Options
from halfwise.emulation.runner import Arithmetic, ModelRunner
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, UsageError
from halfwise.fixing.next_steps import diagnose_step, fix_step, int8_step
from halfwise.fixing.repair.making import further, repaired_at
from halfwise.formats import BF16
from halfwise.graph.excluding import dropped
from halfwise.graph.model import Names, Network, graphs_of
from halfwise.graph.qoperators import as_pairs
from halfwise.graph.quantised import pairs_of, quantised_nodes, quantising
from halfwise.inputs import holds_outputs, load_recorded
from halfwise.judging.judge import fed
from halfwise.judging.reference import check, check_types, demand_same_inputs
from halfwise.options.engines import TENSORRT
from halfwise.options.loading import load_asked, load_model
from halfwise.options.options import Model, Request, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import Comparison, Step, replace
from halfwise.tools.blame import blame
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.engine_maker import EngineMaker, engine_maker
from halfwise.tools.compare.walk import (
    Low,
    RecordedSide,
    Side,
    Walk,
    emulated,
    excess_of,
    reference,
    with_bf16,
)
from halfwise.wording import count, listed

_FOLDED = frozenset(("Add", "BatchNormalization", "Div", "Mul", "Sub"))
"""Operators that other tools fold into the product before them if their operands are constant."""


def _hiding_folded(other: Network, original: Network) -> ir.Model:
    """Return a copy of another file in which no tensor has the name of one that it does not hold.

    A product that absorbed the node behind it may keep its own name for the result, and a quantised
    one has its Relu's name without the Relu (`dropped`); this tensor gets another name, so that it
    is not compared.

    Args:
        other: Made from the original; not changed.
        original: The model.
    """
    model = other.copy()
    made = {v.name: v for n in model.graph for v in n.outputs}
    names = Names(graphs_of(model))
    for node in original.nodes():
        data = [v.name for v in node.inputs if v is not None and v.const_value is None]
        if node.op_type in _FOLDED and len(data) == 1 and node.outputs[0].name not in made:
            value = made.get(data[0])
            if value is not None and not value.is_graph_output():
                value.name = names.take(f"{value.name}::folded")
    for pair in pairs_of(replace(other, model=model)):
        source = pair.source
        if source is not None and not source.is_graph_output() and dropped(pair, original):
            source.name = names.take(f"{source.name}::folded")
    return model


SOURCES = (
    "ort, ort:optimised, emulation:fp16, emulation:bf16, emulation:tf32, emulation:FILE.onnx, "
    "engine:fp32, engine:tf32, engine:fp16, engine:bf16, a .onnx file, or saved outputs "
    "(.npz)"
)
_FORMS = {
    "ort": ("", "optimised"),
    "emulation": ("fp16", "bf16", "tf32"),
    "engine": ("fp32", "tf32", "fp16", "bf16"),
}
"""What may stand behind the colon of a source; the first is the default."""
_WANTED = {"SU": "text", "biuf": "numbers"}
"""NumPy's dtype kinds."""


class Source(Struct, frozen=True):
    """What computes one side.

    Attributes:
        kind: The model in ONNX Runtime, emulated or as an engine; another model; saved outputs.
        form: The item of `_FORMS`; of another model, "emulated" if it is.
        path: The file; empty if there is none.
    """

    kind: Literal["ort", "emulation", "engine", "model", "record"]
    form: str = ""
    path: Path = Path()


def source_of(spelled: str) -> Source:
    """Return the source that a spelling names: see `SOURCES`.

    Raises:
        UsageError: it names none.
    """
    kind, _, form = spelled.partition(":")
    if kind in _FORMS and form in ("", *_FORMS[kind]):
        return Source(cast(Any, kind), form or _FORMS[kind][0])
    if spelled and holds_outputs(Path(spelled)):
        return Source("record", path=Path(spelled))
    path = Path(form if kind == "emulation" else spelled)
    if path.suffix == ".onnx":
        return Source("model", "emulated" if kind == "emulation" else "", path)
    raise UsageError(f"{spelled!r} is nothing that can be compared.", f"Give one of: {SOURCES}.")


@bounded
def compare(
    model: Model,
    inputs: Inputs,
    *,
    a: str = "ort",
    b: str,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Return where two computations of a model diverge, node by node.

    Args:
        model: The model, which defines each node. An FP16 or BF16 export is widened.
        inputs: Samples.
        a: The trusted side; see `SOURCES`.
        b: The other side.
        watcher: Receives progress.
        options: See `Options`.

    Raises:
        UsageError: a source or an option does not apply.
        CaseError: the model, the inputs or a source cannot be used.
        BackendMissing, BuildFailed, RunFailed: as for `fix` with a target.
    """
    watcher = watcher or Silent()
    sources = source_of(a), source_of(b)
    kinds = [source.kind for source in sources]
    settings: dict[str, Any] = dict(options)
    engines = "engine" in kinds
    if engines:
        settings["target"] = TENSORRT
    request = understand(inputs, settings)
    case = load_asked(model, request, watcher, split=False)
    if BF16.name in (source.form for source in sources):
        case = with_bf16(case, request.settings)
    load = cache(load_model)
    case, notes = _as_repaired(case, sources, load)
    check(case.network, runtime=request.settings.runtime)
    with engine_maker(case, request.settings, request.target, watcher) as maker:
        first, second = (_side(s, case, request.settings, maker, load) for s in sources)
        watcher.stage("compare")
        runtime, step = request.settings.runtime, watcher.step
        walk = Walk(case.network, case.calibration, first, second, runtime=runtime, progress=step)
        comparison = find_divergence(walk)
        _demand_compared(comparison, (first, second))
        notes += tuple(note for side in (first, second) for note in _notes(side))
        names = [*comparison.outputs] if maker is None else []
        off = excess_of(case.criterion, first, second, names)
        comparison = replace(
            comparison,
            notes=notes,
            excess=max(off.values(), default=None),
            beyond=tuple(name for name, excess in off.items() if excess > 1),
        )
        fixable = comparison.differs and not comparison.nothing_to_fix
        steps = _next(case, request, sources[1], second, load) if fixable else ()
        found = None
        if fixable and sources[1].kind == "model" and second.arithmetic == "int8":
            references = list(first.get(names))
            candidate = load(sources[1].path)
            found = blame(candidate, case, references, request.settings, watcher)
        return replace(comparison, blame=found, next_step=steps)


def _next(
    case: Case, request: Request, other: Source, side: Side, load: "Load"
) -> tuple[Step, ...]:
    """Return what to do if a `compare` with another source finds outputs that differ.

    Nothing for another FP32 file: no precision is at fault, and its nodes are named.
    """
    if other.kind == "model" and side.arithmetic == "fp32":
        return ()
    if other.kind == "model" and side.arithmetic == "int8":
        if quantised_nodes(as_pairs(load(other.path))):
            return (fix_step(case, request, None, other.path),)
        return (int8_step(case, request, None),)
    if other.kind == "model" or (other.kind == "emulation" and other.form != "tf32"):
        to = {"to": BF16.name} if other.form == BF16.name else {}
        return (fix_step(case, replace(request, given=request.given | to), None),)
    return (diagnose_step(case, request, None),)


def _notes(side: Side) -> Iterator[str]:
    """Yield on which samples a side fails, and where the inside of an engine can be seen."""
    if isinstance(side, RecordedSide) and side.absent == "fused":
        yield (
            f"{side.label} shows no tensor inside: `halfwise diagnose --target tensorrt` finds the "
            "nodes that are wrong, in engines of parts."
        )
    failures = side.failures if isinstance(side, ModelRunner) else {}
    for sample, failure in list(failures.items())[:1]:
        yield (
            f"{side.label}: {len(failures)} of the samples fail; on {sample}, "
            f"{f'node {failure.node} fails' if failure.node else 'it fails'} "
            f"({failure.why or failure.message})"
        )


def _demand_compared(comparison: Comparison, sides: Sequence[Side]) -> None:
    """Raise RunFailed or CaseError if no tensor was compared, which would look like no error."""
    if any(node.error is not None for node in comparison.nodes):
        return
    for side in sides:
        if isinstance(side, ModelRunner) and len(side.failures) == len(comparison.samples):
            raise next(iter(side.failures.values()))
    raise CaseError(
        f"Nothing was compared: {comparison.a} and {comparison.b} have no tensor of the model in "
        "common.",
        "Give a file whose outputs have the names that they have in the model.",
    )


Load = Callable[[Path], Network]
"""Reads each model file once."""


def _side(
    source: Source,
    case: Case,
    settings: Settings,
    engines: EngineMaker | None,
    load: Load,
) -> Side:
    """Return the side that computes a source; raises CaseError if a file cannot be used."""
    if source.kind == "ort":
        optimise = source.form == "optimised"
        return reference(case.network, case.calibration, settings, optimise=optimise)
    if source.kind == "emulation":
        return emulated(case.network, case.calibration, settings, cast(Low, source.form))
    if source.kind == "record":
        tensors = recorded_tensors(case, source.path)
        names = {a.dtype.name.upper() for a in tensors[0].values()}
        return RecordedSide(tensors, f"{source.path.name}, on record", _arithmetic(names))
    if engines is not None and source.kind == "engine":
        return engines.side(source.form)
    emulate = source.form == "emulated"
    return _model(load, source.path, case, settings, emulate=emulate)


def _model(load: Load, path: Path, case: Case, settings: Settings, *, emulate: bool) -> ModelRunner:
    """Return another file, run unchanged, or emulated by its own types."""
    network = load(path)
    demand_same_inputs(case.network, network.model, str(path))
    check_types(network, runtime=settings.runtime)
    model, samples = _hiding_folded(network, case.network), case.calibration
    arithmetic = arithmetic_of(network)
    if emulate:
        model = emulate_typed(model, accumulate=settings.accumulate)
    else:
        samples = fed(network.model, samples)
    label, runtime = f"{'emulation of' if emulate else 'ONNX Runtime,'} {path}", settings.runtime
    return ModelRunner(model, samples, label, arithmetic, partial=True, runtime=runtime)


def recorded_tensors(case: Case, path: Path) -> tuple[dict[str, NDArray[Any]], ...]:
    """Return recorded tensors for each sample, without the sample axis.

    Raises:
        CaseError: see `load_recorded`; or the file holds no tensor of the model, or non-numbers
            for one.
    """
    values = {str(v.name): v for n in case.network.nodes() for v in n.outputs if v.name}
    recorded = load_recorded(path, len(case.calibration), wanted=values)
    ranks = {name: len(v.shape) for name, v in values.items() if v.shape is not None}
    for name, array in recorded.outputs[0].items():
        if (more := _samples_in(array, values[name])) > 1:
            raise CaseError(
                f"{path} holds '{name}' of {more * len(case.calibration)} samples; the inputs are "
                f"{count(len(case.calibration), 'sample')}.",
                "Give outputs and inputs of the same samples, in the same order.",
            )
    fitted = tuple(
        {
            name: array[0] if ranks.get(name) == array.ndim - 1 else array
            for name, array in outputs.items()
        }
        for outputs in recorded.outputs
    )
    _demand_usable(fitted[0], values, path, recorded.names)
    return fitted


def _samples_in(array: NDArray[Any], value: ir.Value) -> int:
    """Return how many samples of a tensor an array holds along its first axis, as far as known."""
    if value.shape is None or not array.ndim:
        return 1
    declared = list(value.shape)
    if array.ndim == len(declared) + 1:
        return int(array.shape[0])
    if array.ndim != len(declared):
        return 1
    first, *rest = zip(declared, array.shape, strict=True)
    alike = all(not isinstance(each, int) or each == length for each, length in rest)
    return array.shape[0] // first[0] if isinstance(first[0], int) and first[0] and alike else 1


def _demand_usable(
    tensors: Mapping[str, NDArray[Any]],
    values: Mapping[str, ir.Value],
    path: Path,
    recorded: Collection[str],
) -> None:
    if not tensors:
        held = listed(sorted(recorded)) or "nothing"
        raise CaseError(
            f"{path} holds no tensor of the model: {held}.",
            "Save outputs under their names in the model.",
        )
    for name, array in tensors.items():
        kinds = "SU" if values[name].dtype is ir.DataType.STRING else "biuf"
        if array.dtype.kind not in kinds:
            raise CaseError(
                f"{path}: '{name}' is {array.dtype.name}; expected {_WANTED[kinds]}.",
                "Save it in the model's type; save BF16 as float32, as NumPy has no BF16.",
            )


def arithmetic_of(network: Network) -> Arithmetic:
    """Return the coarsest arithmetic in a model's file."""
    if quantising(network):
        return "int8"
    return _arithmetic({v.dtype.name for n in network.nodes() for v in n.outputs if v.dtype})


def _arithmetic(dtypes: set[str]) -> Arithmetic:
    """Return the coarsest arithmetic among types."""
    if "BFLOAT16" in dtypes:
        return "bf16"
    return "fp16" if "FLOAT16" in dtypes else "fp32"


def _as_repaired(case: Case, sources: Sequence[Source], load: Load) -> tuple[Case, tuple[str, ...]]:
    """Return the case with the compared file's repairs applied, and a note.

    Another file and recorded outputs have no repairs: they leave the case unchanged.

    Raises:
        CaseError: the file cannot be read, or its repairs do not apply to this model.
    """
    paths = [source.path for source in sources if source.kind == "model"]
    if len(paths) != 1 or any(source.kind == "record" for source in sources):
        return case, ()
    (path,) = paths
    candidate = load(path)
    # Repairs store tensors at other scales: against the original model each looks like a fault.
    repairs = further(candidate.model, case.network.model)
    if not repairs:
        return case, ()
    note = (
        f"{path} has {count(len(repairs), 'repair')}, so both sides are compared with the "
        "repairs applied; `halfwise verify` proves the repairs"
    )
    return replace(case, network=repaired_at(case.network, repairs, candidate.opset)[1]), (note,)
