"""Rewrite old operator patterns of a model with the operators its target has."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Unpack

import onnx_ir as ir

from halfwise.case import Case, Runtime, Samples
from halfwise.declarations import Inputs, Options
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.rewrite import save_checked
from halfwise.formats import ROUNDINGS_OF_MODEL
from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network, node_name
from halfwise.graph.one_node import FIRST_OPSET, OF_ANY_OPSET, Candidate, candidates, replace_all
from halfwise.inputs import RANDOM
from halfwise.judging.reference import check
from halfwise.metrics import Outputs, relative_error
from halfwise.observing import DETAIL_SAMPLES
from halfwise.options.loading import load_asked
from halfwise.options.options import Model, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import LeftAlone, Modernized, NodeName, Rewriting
from halfwise.reporting.parts import Column, Lines, Report, Table, present
from halfwise.reporting.remarks import not_real, note_text
from halfwise.store import file_named, new_file, refuse_existing_file
from halfwise.tensorrt.versions import (
    DEFAULT_PARSER,
    OLDEST_PARSER,
    has_operator,
    highest_opset,
    known_version,
)
from halfwise.wording import MOST_ROWS, capital, clean, count, number, sentence, shorten

MAP_SUFFIX = ".map.json"


@bounded
def modernize(
    model: Model,
    out: str | Path,
    inputs: Inputs = RANDOM,
    *,
    trt_version: str = DEFAULT_PARSER,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Modernized:
    """Write the model with a higher opset and norms, softmaxes and GELUs as one node each.

    Both models run on the inputs, and a change of the function is undone. `out.map.json`, next to
    `out`, gets the record, with new node names by old name.

    Args:
        model: FP32 model.
        out: ONNX file to write; must not exist.
        inputs: Samples, as for `fix`; random numbers by default.
        trt_version: TensorRT that will read it.
        watcher: Receives progress.
        options: See `Options`.

    Raises:
        HalfwiseError: the model, the inputs or an option cannot be used.
    """
    watcher = watcher or Silent()
    path = file_named(out, ".onnx")
    refuse_existing_file(path, MAP_SUFFIX)
    request = understand(inputs, options)
    version = known_version(trt_version, oldest=OLDEST_PARSER)
    case = load_asked(model, request, watcher, split=False)
    if case.stored.formats:
        raise CaseError(
            f"The model stores {' and '.join(case.stored.formats)}; its weights are already "
            "rounded.",
            "Modernize the FP32 model, then lower it with `halfwise fix`.",
        )
    watcher.stage("modernize")
    runtime = request.settings.runtime
    check(case.network, runtime=runtime)
    known = [op for op in FIRST_OPSET if has_operator(op, version)]
    network, record = modernized_case(
        case, runtime, highest_opset(version), (*known, *OF_ANY_OPSET), f"TensorRT {trt_version}"
    )
    with new_file(path, MAP_SUFFIX) as new:
        save_checked(network.model, new, runtime=runtime)
        text = record.model_dump_json(indent=1) + "\n"
        new.with_name(f"{new.name}{MAP_SUFFIX}").write_text(text, encoding="utf-8")
    return record


@dataclass(frozen=True)
class _Original:
    """The function that has to stay."""

    network: Network
    samples: Samples
    runtime: Runtime

    @cached_property
    def _outputs(self) -> list[Outputs]:
        session = Session(self.network.model, runtime=self.runtime)
        return [session.run(sample) for sample in self.samples]

    def error(self, network: Network) -> float:
        """Return the largest error of an output, over its largest magnitude.

        Raises:
            CaseError, RunFailed: one of the two does not run.
        """
        before, session = self._outputs, Session(network.model, runtime=self.runtime)
        return max(
            max(relative_error(array, after[name]) for name, array in outputs.items())
            for outputs, after in zip(before, map(session.run, self.samples), strict=True)
        )

    def demand_same(self, network: Network) -> float:
        """Return the error; CaseError if it is more than rounding."""
        error = self.error(network)
        if error > ROUNDINGS_OF_MODEL:
            raise CaseError(f"outputs differ by {number(error)}")
        return error


def modernized_case(
    case: Case, runtime: Runtime, opset: int, available: Collection[str], target: str
) -> tuple[Network, Modernized]:
    """Return the modernized network and the record of what was done.

    Args:
        case: The FP32 model and its samples, none held out.
        runtime: Where both models run.
        opset: The highest the target reads.
        available: The operators that may replace patterns; see `candidates`.
        target: The target in words.

    Raises:
        CaseError, RunFailed: the model does not run on the samples.
    """
    samples = case.calibration.select(range(min(DETAIL_SAMPLES, len(case.calibration))))
    original = _Original(case.network, samples, runtime)
    network, notes = _raised(original, opset)
    error = original.error(network)
    rewritings: list[Rewriting] = []
    undone: list[LeftAlone] = []
    usable = [c for c in candidates(network, available) if c.replacement is not None]
    waiting = [usable] if usable else []
    while waiting:
        some = waiting.pop()
        try:
            changed, made = _rewritten(network, some)
            error = original.demand_same(changed)
        except (CaseError, RunFailed) as failure:
            if len(some) > 1:
                waiting += [[each] for each in reversed(some)]
                continue
            reason = f"undone: {failure.message}"
            undone.append(LeftAlone(op=some[0].op, nodes=some[0].nodes, reason=reason))
        else:
            network = changed
            rewritings += made
    others = (c for c in candidates(network, available) if c.reason)
    left = [LeftAlone(op=c.op, nodes=c.nodes, reason=c.reason) for c in others]
    return network, Modernized(
        model=str(case.network.path or "in memory"),
        opset=case.network.opset,
        new_opset=network.opset,
        target=target,
        rewritings=tuple(rewritings),
        left=(*left, *undone),
        names=_names(rewritings, case.network),
        nodes=sum(1 for _ in case.network.nodes()),
        new_nodes=sum(1 for _ in network.nodes()),
        samples=samples.ids,
        real=case.real,
        made_up=case.made_up,
        error=error,
        notes=(*(note_text(n) for n in case.notes if n.severity == "warning"), *notes),
    )


def _raised(original: _Original, opset: int) -> tuple[Network, list[str]]:
    """Return the network at the highest opset, up to `opset`, that preserves the function."""
    notes: list[str] = []
    steps = {opset, *(first for first in FIRST_OPSET.values() if first < opset)}
    for step in sorted((s for s in steps if s > original.network.opset), reverse=True):
        try:
            raised = raise_opset(original.network, step)
            original.demand_same(raised)
        except (CaseError, RunFailed) as failure:
            notes.append(f"not raised to opset {step}: {failure.message}")
        else:
            return raised, notes
    return original.network, notes


def _rewritten(
    network: Network, patterns: Collection[Candidate]
) -> tuple[Network, list[Rewriting]]:
    """Return the network with one node in the place of each pattern, and what was done."""
    model = network.copy()
    replacements = [c.replacement for c in patterns if c.replacement is not None]
    done = replace_all(model, replacements)
    rewritings = [
        Rewriting(op=made.op, output=made.output, removed=each.removed, added=each.added)
        for made, each in zip(replacements, done, strict=True)
    ]
    return _normal(network, model), rewritings


def _normal(network: Network, model: ir.Model) -> Network:
    """Return a changed copy of a network's model as a network."""
    normal = normalise(model, path=network.path, sha256=network.sha256)
    kept = {node_name(n) for n in normal.all_nodes()}
    names = {n: old for n, old in network.original_names.items() if n in kept}
    return replace(normal, original_names=names)


def _names(
    rewritings: Collection[Rewriting], network: Network
) -> dict[NodeName, tuple[NodeName, ...]]:
    """Return the replacements of each removed node, by its name in the user's file."""
    names: dict[NodeName, tuple[NodeName, ...]] = {}
    for rewriting in rewritings:
        names |= dict.fromkeys(rewriting.removed, rewriting.added)
    original = network.original_names
    return {NodeName(original.get(old) or old): new for old, new in names.items()}


def modernized(record: Modernized) -> Report:
    """Return the report: what was rewritten and left, and the proof."""
    caution = ""
    if record.made_up:
        caution = f"{capital(not_real(record.made_up, accepted=True))}."
    elif not record.real:
        caution = "Compared on random inputs: give --inputs to compare on real data."
    return Report(
        _title(record),
        None,
        " · ".join((sentence(record.model), f"for {clean(record.target)}")),
        present(_rewritings(record), _not_rewritten(record), _proof(record)),
        caution,
    )


def _title(record: Modernized) -> str:
    opset = f"opset {record.new_opset}"
    if record.new_opset != record.opset:
        opset = f"opset {record.opset} → {record.new_opset}"
    kinds = Counter(r.op for r in record.rewritings)
    made = ", ".join(f"{number} {op}" for op, number in kinds.items()) or "nothing rewritten"
    return f"{opset}, {made}, {record.nodes} → {count(record.new_nodes, 'node')}"


def _rewritings(record: Modernized) -> Table | None:
    if not record.rewritings:
        return None
    rows = [
        (shorten(r.added[-1], 40), r.op, str(len(r.removed)), shorten(r.removed[0], 30))
        for r in record.rewritings
    ]
    columns = (Column("new node"), Column("operator"), Column("for", "right"), Column("nodes from"))
    return Table("Rewritten", columns, tuple(rows), most=MOST_ROWS)


def _not_rewritten(record: Modernized) -> Lines | None:
    reasons: dict[tuple[str, str], list[LeftAlone]] = {}
    for group in record.left:
        reasons.setdefault((group.op, group.reason), []).append(group)
    lines = [
        f"{clean(op)} ×{len(some)}: {sentence(reason)}; from {shorten(some[0].nodes[0])}"
        for (op, reason), some in reasons.items()
    ]
    return Lines("Left alone", tuple(lines[:MOST_ROWS])) if lines else None


def _proof(record: Modernized) -> Lines:
    lines = [
        f"Outputs in FP32 on {count(len(record.samples), 'sample')}: off by at most "
        f"{number(record.error)} of the largest value."
    ]
    lines += [sentence(note) for note in record.notes]
    return Lines("Proof", tuple(lines))
