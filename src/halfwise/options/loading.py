"""Load what the user named into a case."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from msgspec.structs import asdict
from numpy.typing import NDArray

from halfwise.case import CPU, TOGETHER, Case, Runtime, Sample, Samples, hash_sample
from halfwise.emulation.budget import expect_repeating
from halfwise.emulation.ort import Session, has_operator, start
from halfwise.emulation.runner import OTHER_KERNELS
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.graph.aside import Aside, ending_in_ifs, outermost, resolve, seeded, set_aside
from halfwise.graph.bodies import OBSERVABLE_OPSET, bodies_in, is_observable
from halfwise.graph.conversion import Stored, upcast
from halfwise.graph.dataflow import giving_out
from halfwise.graph.loading import infer_again, load_network, network_from_proto
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.qoperators import as_pairs
from halfwise.graph.quantised import census
from halfwise.graph.sizes import declared_axes
from halfwise.inputs import (
    InputSpec,
    LoadedSamples,
    Rows,
    hash_together,
    load_function,
    load_inputs,
    load_labels,
    split_heldout,
    unseen,
)
from halfwise.metrics import check_labels
from halfwise.metrics.difference import is_close
from halfwise.options.options import Data, Model, Request, named_metric, with_settled_metric
from halfwise.progress import Silent, Watcher
from halfwise.records import Criterion, Fact, NodeName, Note, Run, TensorName, replace
from halfwise.reporting.remarks import note_text
from halfwise.store import read_run

Reading = Literal["samples", "one", "mixed"]

_BATCH = re.compile(r"n|b|bs|.*batch.*", re.IGNORECASE)
"""Names of an axis that say what it counts."""


def load_settled(
    network: Network,
    specs: Sequence[InputSpec],
    read: Callable[[Sequence[InputSpec]], LoadedSamples],
    *,
    runtime: Runtime = CPU,
) -> tuple[LoadedSamples, list[InputSpec]]:
    """Return the samples, and the inputs with what is known of their first axes.

    The model runs only if arrays hold several samples along a first axis without a batch's name.

    Args:
        network: The FP32 model.
        specs: Its inputs.
        read: Reads the data for these inputs, as `load_inputs` does; its errors are not caught.
        runtime: Where the model runs.
    """
    loaded, settled = read(specs), list(specs)
    if loaded.rows is None or all(_named(spec) for spec in specs if spec.batch_is_dynamic):
        return loaded, settled
    try:
        reading = _reading(Session(network.model, runtime=runtime), loaded.samples, loaded.rows)
    except (CaseError, RunFailed):
        # Whoever needs the model says why it does not load or run.
        return loaded, settled
    if reading == "one" or (reading == "mixed" and loaded.rows.files > 1):
        settled = [replace(spec, counts=False) for spec in specs]
        return read(settled), settled
    if reading == "mixed":
        note = Note(kind="mixed-rows", severity="warning", facts={"rows": loaded.rows.count})
        loaded = replace(loaded, notes=(*loaded.notes, note))
    return loaded, settled


def _named(spec: InputSpec) -> bool:
    axis = spec.shape[0] if spec.shape else None
    return isinstance(axis, str) and _BATCH.fullmatch(axis) is not None


def _reading(session: Session, samples: Samples, rows: Rows) -> Reading:
    """Return how the rows of an array have to be read.

    "one" if the model does not run on a row but on the array, or if no output depends on the rows
    in its size; "mixed" if outputs grow with the rows, but a row alone gives other values; else
    "samples", also if it runs on neither.

    Raises:
        RunFailed: it runs neither on a row nor on the array, or not on several rows.
    """
    every = range(rows.first, rows.first + rows.count)
    chosen = [samples[i] for i in every[:TOGETHER]]
    try:
        alone = [session.run(row) for row in chosen]
    except RunFailed:
        session.run(_joined([samples[i] for i in every]))
        return "one"
    together = session.run(_joined(chosen))
    readings = {_compared(array, [one[name] for one in alone]) for name, array in together.items()}
    order: tuple[Reading, ...] = ("mixed", "samples", "one")
    return next((reading for reading in order if reading in readings), "samples")


def _joined(rows: Sequence[Sample]) -> Mapping[str, NDArray[Any]]:
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _compared(together: object, alone: Sequence[object]) -> Reading | None:
    """Return what an output shows; None if it shows nothing, as where it is constant."""
    if not isinstance(together, np.ndarray):
        return None
    ones = [np.asarray(one) for one in alone]
    if any(one.shape != ones[0].shape for one in ones):
        return None
    if together.shape == ones[0].shape:
        return None if all(is_close(together, one, OTHER_KERNELS) for one in ones) else "one"
    if together.ndim != ones[0].ndim:
        return None
    joined = np.concatenate(ones, int(np.argmax(np.not_equal(together.shape, ones[0].shape))))
    if together.shape != joined.shape:
        return None
    return "samples" if is_close(together, joined, OTHER_KERNELS) else "mixed"


_REPEATING = ("Loop", "Scan", "SequenceMap")
"""Operators that run a body as often as the model says, nested scans included."""
_SILENT = Silent()


def load_case(
    model: Model,
    data: Data,
    criterion: Criterion,
    *,
    split: bool = True,
    few: bool = False,
    whole: bool = False,
    runtime: Runtime = CPU,
    watcher: Watcher = _SILENT,
) -> Case:
    """Return the case: network, samples, criterion and metric.

    Args:
        model: Floating-point model; FP16 and BF16 values are upcast to FP32.
        data: Samples.
        criterion: What is acceptable.
        split: Whether to hold samples out; otherwise all are for calibration.
        few: Whether few of many samples without labels are enough to search on; with labels, others
            may win back what some lose.
        whole: Whether nothing is set aside: ONNX Runtime may lack operators, or fail.
        runtime: Where the model runs, if the metric depends on its outputs.
        watcher: Receives how much of the model and how many samples are read.

    Raises:
        CaseError, UsageError: a part cannot be used.
    """
    if data.heldout is not None and not split:
        raise UsageError(
            "--heldout does not apply here: there is no search, so every input counts.",
            "Give all samples with --inputs.",
        )
    start(runtime)
    network, stored = upcast(load_model(model, watcher))
    specs, metric = input_specs(network), named_metric(criterion)
    read = partial(load_inputs, preprocess=data.preprocess)
    loaded, specs = load_settled(network, specs, partial(read, data.inputs), runtime=runtime)
    samples = _labelled(loaded.samples, data.labels, criterion.metric)
    aside: Aside | None = None
    supply: _Supply = _unchanged
    if not whole:
        network, aside, supply = _set_aside(network, data, samples, runtime)
    samples = supply(samples)
    notes = [*_file_notes(network, stored), *loaded.notes, *rank_inputs(network, samples)]
    notes += _aside_notes(aside)
    heldout, made_up, real = samples.select(()), loaded.made_up, loaded.real
    if data.heldout is not None:
        separate = read(data.heldout, specs)
        heldout = supply(_labelled(separate.samples, data.heldout_labels, criterion.metric))
        made_up, real = tuple(dict.fromkeys((*made_up, *separate.made_up))), real and separate.real
        notes += [replace(note, of="held out") for note in separate.notes]
    elif split:
        most, few = criterion.failing is not None, few and data.labels is None
        samples, heldout = split_heldout(samples, most=most, few=few and not most)
        split_into: dict[str, Fact] = {"searched": len(samples), "heldout": len(heldout)}
        notes.append(
            Note(kind="split", facts=split_into)
            if len(heldout)
            else Note(kind="single", severity="warning")
        )
    samples, heldout = samples.held(), heldout.held()
    searched, judged = (
        list(map(hash_sample, each.with_progress(watcher.step))) for each in (samples, heldout)
    )
    if aside is None and not whole:
        ending = ending_in_ifs(network)
        if branches := branches_of(ending, (samples, heldout), runtime):
            network, aside = resolve(ending, branches)
            notes += _aside_notes(aside)
    notes += _unobserved_notes(network)
    chosen = unseen(searched, judged)
    if len(chosen) < len(heldout):
        copies: dict[str, Fact] = {
            "copies": len(heldout) - len(chosen),
            "heldout": len(heldout),
        }
        notes.append(Note(kind="copies", severity="warning", facts=copies))
    case = Case(
        network=network,
        calibration=_marked(samples, searched),
        heldout=_marked(heldout, judged).select(chosen),
        criterion=criterion,
        metric=metric,
        notes=tuple(note for i, note in enumerate(notes) if note not in notes[:i]),
        data_sha256=hash_together([*searched, *(judged[i] for i in chosen)]),
        real=real,
        made_up=made_up,
        stored=stored,
        aside=aside,
    )
    return case if whole else with_settled_metric(case, runtime)


_Supply = Callable[[Samples], Samples]


def _unchanged(samples: Samples) -> Samples:
    return samples


def _set_aside(
    network: Network, data: Data, samples: Samples, runtime: Runtime
) -> tuple[Network, Aside | None, _Supply]:
    """Return what of a network is judged, what is set aside, and what adds its numbers to samples.

    Raises:
        CaseError: nothing remains to be judged, or `plugin_outputs` cannot be used.
    """
    stand_ins = _stand_ins(data.plugin_outputs)
    first = {} if stand_ins is None else stand_ins(samples[0], 0)
    types = {TensorName(n): ir.DataType.from_numpy(a.dtype) for n, a in first.items()}
    judged, aside = set_aside(network, runnable(runtime), types)
    if aside is None or not aside.supplied:
        return judged, aside, _unchanged
    drawn = [name for name in aside.supplied if name not in types]
    drawing = giving_out(seeded(network.model), drawn) if drawn else None
    session = Session(drawing, runtime=runtime) if drawing is not None else None

    def supply(of: Samples) -> Samples:
        @cache
        def drawn_for(index: int) -> Sample:
            return {} if session is None else session.run(of[index], drawn)

        def load(index: int) -> Sample:
            sample = of[index]
            given = {} if stand_ins is None else stand_ins(sample, index)
            made = {n: a for n, a in given.items() if n in aside.supplied}
            return {**sample, **drawn_for(index), **made}

        return replace(of, load=load)

    return judged, aside, supply


def branches_of(
    network: Network, every: Iterable[Iterable[Sample]], runtime: Runtime
) -> dict[NodeName, str]:
    """Return the branch that each outermost If takes on all samples; none if it takes both."""
    nodes = outermost(network)
    conditions = {node_name(n): v for n in nodes if (v := n.inputs[0]) is not None}
    wanted = [TensorName(v.name or "") for v in conditions.values() if v.producer() is not None]
    session = Session(giving_out(network.model, wanted), runtime=runtime) if wanted else None
    seen: dict[NodeName, set[bool]] = {name: set() for name in conditions}
    for sample in (sample for samples in every for sample in samples if conditions):
        try:
            found = {**sample, **({} if session is None else session.run(sample, wanted))}
        except RunFailed:  # whoever runs the model says why
            return {}
        for name, value in conditions.items():
            constant = value.const_value
            array = found[value.name or ""] if constant is None else constant.numpy()
            seen[name].add(bool(np.asarray(array).all()))
    names = {True: "then_branch", False: "else_branch"}
    return {name: names[taken.pop()] for name, taken in seen.items() if len(taken) == 1}


def runnable(runtime: Runtime) -> Callable[[ir.Node], bool]:
    """Return what tells whether ONNX Runtime has an operator; a user's library may have any."""
    return (lambda _: True) if runtime.libraries else has_operator


def _stand_ins(source: str | None) -> Callable[[Sample, int], Sample] | None:
    """Return what gives the numbers for a sample: of a file, its first axis counts samples.

    FP64 is rounded to FP32: TensorRT has none.
    """
    if source is None:
        return None
    if ":" in source:
        function = load_function(source)
        return lambda sample, _: {n: _single(a) for n, a in function(dict(sample)).items()}
    try:
        arrays = {n: _single(a) for n, a in np.load(source, allow_pickle=False).items()}
    except (OSError, ValueError) as error:
        raise CaseError(
            f"--plugin-outputs {source} cannot be read: {error}.",
            "Give an NPZ file: for each output, an array whose first axis counts samples.",
        ) from error
    return lambda _, index: {n: a[index % len(a)] for n, a in arrays.items()}


def _single(value: object) -> NDArray[Any]:
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _aside_notes(aside: Aside | None) -> Iterator[Note]:
    """Yield what was set aside, and what is judged instead."""
    if aside is None:
        return
    of_model: dict[str, Fact] = {"outputs": aside.outputs, "read": aside.read}
    ends = {name: fact for name, fact in of_model.items() if fact}
    if aside.draws:
        drawn: dict[str, Fact] = {"nodes": tuple(map(str, aside.draws))}
        yield Note(kind="draws", facts=drawn if aside.foreign else drawn | ends)
    for name, branch in aside.branches.items():
        yield Note(kind="branch", facts={"node": name, "branch": branch})
    if aside.foreign:
        facts: dict[str, Fact] = {
            "nodes": aside.foreign,
            "ops": aside.lacking,
            "more": len(aside.nodes) - len(aside.foreign) - len(aside.draws),
        }
        yield Note(kind="aside", severity="warning", facts=ends | facts)


def _unobserved_notes(network: Network) -> Iterator[Note]:
    """Yield which nodes with bodies that compute are a closed box, and why."""
    closed = [
        body.node
        for body in bodies_in(network.graph).values()
        if not is_observable(body.node, network.opset) and body.computes(low=False)
    ]
    if names := tuple(dict.fromkeys(map(node_name, closed))):
        old = {"opset": network.opset} if network.opset < OBSERVABLE_OPSET else {}
        yield Note(kind="unobserved", facts={"nodes": names, **old})


def load_asked(
    model: Model, request: Request, watcher: Watcher, *, split: bool = True, whole: bool = False
) -> Case:
    """Return the requested case, and report its notes; see `load_case`."""
    watcher.stage("load")
    runtime = request.settings.runtime
    few = not request.settings.int8  # its ranges come from all samples of the search
    load = partial(load_case, split=split, few=few, whole=whole, runtime=runtime, watcher=watcher)
    case = load(model, request.data, request.criterion)
    tell(watcher, case.notes)
    return case


def tell(watcher: Watcher, notes: Iterable[Note]) -> None:
    """Report the notes on a model and its inputs, one by one."""
    for note in notes:
        watcher.note(note_text(note))


def load_model(model: Model, watcher: Watcher = _SILENT) -> Network:
    """Return the model in normal form, in the types of its file."""
    if isinstance(model, onnx.ModelProto):
        network = network_from_proto(model)
    else:
        network = load_network(Path(model), watcher.step)
    if any(is_standard(node, *_REPEATING) for node in network.graph.all_nodes()):
        expect_repeating()
    return network


def load_start(path: Path) -> Network | Run:
    """Return what a search can start from: a mixed model in its own types, or a run.

    A QOperator file as Q/DQ pairs (`as_pairs`).

    Raises:
        CaseError: nothing is there, or it is not an ONNX model.
        RecordMismatch: a folder or JSON file without a run.
    """
    if not path.exists():
        raise CaseError(
            f"Found no model or run at {path} to start from.",
            "Give a mixed-precision ONNX model, a run folder or its run.json.",
        )
    if path.is_dir() or path.suffix == ".json":
        return read_run(path)
    return as_pairs(load_network(path))


def _file_notes(network: Network, stored: Stored) -> list[Note]:
    """Return what was repaired or upcast in the model's file, and what is quantised."""
    notes = list[Note]()
    if network.mistyped:
        notes.append(Note(kind="mistyped", facts={"names": network.mistyped}))
    if stored.formats:
        notes.append(Note(kind="stored", facts={"formats": tuple(stored.formats)}))
    if (types := census(network)).quantised:
        notes.append(Note(kind="quantised", facts={"whose": "model", **asdict(types)}))
    return notes


def _marked(samples: Samples, hashes: Sequence[str]) -> Samples:
    return replace(samples, marks=tuple(each[:16] for each in hashes))


def _labelled(samples: Samples, labels: Path | None, metric: str | None) -> Samples:
    if labels is None:
        return samples
    loaded = load_labels(labels, len(samples))
    check_labels(metric, loaded)
    return Samples(samples.ids, samples.load, loaded)


_TREES = frozenset(("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"))
"""Operators of ai.onnx.ml for which NaN is a missing value: `nodes_missing_value_tracks_true`."""


def input_specs(network: Network) -> list[InputSpec]:
    """Return what the model's inputs expect.

    Raises:
        CaseError: it has no input, or one that is not a tensor.
    """
    if not network.graph.inputs:
        raise CaseError(
            "The model has no inputs, so it always computes the same.",
            "Export it with its data as graph inputs, not as constants.",
        )
    specs = []
    for value in network.graph.inputs:
        if not isinstance(value.type, ir.TensorType):
            raise CaseError(
                f"Input {value.name!r} of the model is not a tensor.",
                "Export the model with tensor inputs.",
            )
        dtype = value.type.dtype
        numpy = np.dtype(object) if dtype == ir.DataType.STRING else dtype.numpy()
        shape = None if value.shape is None else declared_axes(value)
        readers = [node for node, _ in value.uses()]
        missing = bool(readers) and all(node.op_type in _TREES for node in readers)
        specs.append(InputSpec(value.name or "", numpy, shape, missing=missing))
    return specs


def rank_inputs(network: Network, samples: Samples) -> list[Note]:
    """Give inputs without a rank the first sample's, in place; return notes on them.

    Raises:
        CaseError: with these ranks, types contradict each other.
    """
    unranked = [v for v in network.graph.inputs if v.shape is None]
    if not unranked:
        return []
    sample = samples[0]
    for value in unranked:
        value.shape = ir.Shape([None] * sample[value.name or ""].ndim)
    infer_again(network)
    facts: dict[str, Fact] = {
        "inputs": tuple(v.name or "" for v in unranked),
        "ranks": tuple(len(v.shape or ()) for v in unranked),
    }
    return [Note(kind="ranks", facts=facts)]
