"""Rewrite old operator patterns of a model with the operators its target has."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Unpack

import onnx_ir as ir

from halfwise.case import CPU, Case, Runtime, Samples, Settings
from halfwise.declarations import Inputs, Options
from halfwise.declarations.options import Worker as WorkerNames
from halfwise.emulation.folding import fold_constants
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import TENSORS_AT_ONCE
from halfwise.errors import BackendMissing, CaseError, RunFailed
from halfwise.fixing.rewrite import save_checked
from halfwise.fixing.stages import Stages
from halfwise.formats import ROUNDINGS_OF_MODEL
from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network, node_name
from halfwise.graph.one_node import (
    FIRST_OPSET,
    Candidate,
    Replaced,
    Replacement,
    alone,
    candidates,
    replace_all,
)
from halfwise.inputs import RANDOM
from halfwise.judging.judge import judge
from halfwise.judging.reference import check, inspected_reference
from halfwise.metrics import relative_error
from halfwise.observing import DETAIL_SAMPLES
from halfwise.options.engines import split
from halfwise.options.loading import load_asked, nodes_of
from halfwise.options.options import Model, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import LeftAlone, Modernized, NodeName, Rewriting, Verdict
from halfwise.reporting.parts import Column, Lines, Report, Table, present
from halfwise.reporting.remarks import reasons
from halfwise.reporting.steps import not_real, note_text
from halfwise.store import file_named, new_file, refuse_existing_file
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.versions import (
    DEFAULT_PARSER,
    OLDEST_PARSER,
    first_reading,
    has_operator,
    highest_opset,
    known_version,
    text_of,
    version_of,
)
from halfwise.tensorrt.workers import resolve
from halfwise.tools.compare.walk import all_low
from halfwise.tools.doctor import ANSWER_SECONDS
from halfwise.wording import MOST_ROWS, capital, clean, count, number, sentence, shorten


@dataclass(frozen=True)
class Proven:
    """A model proven to compute the same function.

    Attributes:
        network: The model.
        rewritings: Rewritings kept.
        left: Candidates left alone or undone.
        folded: Nodes replaced by constants.
        error: Largest error of an output, over its largest magnitude.
        notes: Failed attempts.
    """

    network: Network
    rewritings: tuple[Rewriting, ...]
    left: tuple[LeftAlone, ...]
    folded: tuple[NodeName, ...]
    error: float
    notes: tuple[str, ...]


class Modernizer:
    """Changes a network step by step, keeping only steps that preserve the function."""

    def __init__(
        self,
        network: Network,
        samples: Samples,
        *,
        runtime: Runtime = CPU,
        progress: Callable[[int, int, str], None] = lambda _done, _total, _of: None,
    ) -> None:
        """Run the original on the samples.

        Args:
            network: FP32 model.
            samples: At least one.
            runtime: Where to run.
            progress: Receives the number of rewritings compared, and of all.

        Raises:
            CaseError, RunFailed: the original does not run.
        """
        self.network = network
        self._samples = samples
        self._runtime, self._progress = runtime, progress
        session = Session(network.model, runtime=self._runtime)
        self._references = [session.run(sample) for sample in samples]
        self._notes: list[str] = []
        self._error = 0.0
        self._folded: list[NodeName] = []

    def run(self, opset: int, available: Collection[str], *, transposes: bool = False) -> Proven:
        """Return the modernized network.

        Args:
            opset: The highest opset that the target reads.
            available: The target's operators.
            transposes: Whether to add Transposes around norms over other axes than the last.
        """
        self._raise(opset)
        self._fold()
        patterns = candidates(self.network, available, transposes=transposes)
        alone = [LeftAlone(op=c.op, nodes=c.nodes, reason=c.reason) for c in patterns if c.reason]
        errors = self._local_errors([c for c in patterns if c.replacement is not None])
        wrong = [c for c, error in errors.items() if error > ROUNDINGS_OF_MODEL]
        alone += [_undone(c, f"it differs by {number(errors.pop(c))}") for c in wrong]
        done, undone = self._replace(errors)
        rewritings = tuple(
            Rewriting(
                op=candidate.op,
                output=_replacement(candidate).output,
                removed=replaced.removed,
                added=replaced.added,
                error=errors[candidate],
            )
            for candidate, replaced in done.items()
        )
        return Proven(
            self.network,
            rewritings,
            (*alone, *undone),
            tuple(self._folded),
            self._error,
            tuple(self._notes),
        )

    def _raise(self, opset: int) -> None:
        """Raise the opset to the highest, up to `opset`, that preserves the function."""
        steps = {opset, *(first for first in FIRST_OPSET.values() if first < opset)}
        for step in sorted(steps, reverse=True):
            if not self.network.opset < step <= opset:
                continue
            try:
                raised = raise_opset(self.network, step)
                error = self._whole_error(raised)
            except (CaseError, RunFailed) as failure:
                self._notes.append(f"not raised to opset {step}: {failure.message}")
                continue
            if error <= ROUNDINGS_OF_MODEL:
                self.network, self._error = raised, error
                return
            self._notes.append(f"not raised to opset {step}: outputs differ by {number(error)}")

    def _fold(self) -> None:
        model = self.network.copy()
        # Declared inner sizes may be those of one export; infer them again from the inputs.
        for value in (v for n in model.graph for v in n.outputs if not v.is_graph_output()):
            value.shape = None
        try:
            fresh = self._normal(model)
            model = fresh.copy()
            folded = fold_constants(model)
            network = self._normal(model) if folded else fresh
            error = self._whole_error(network)
        except (CaseError, RunFailed) as failure:
            self._notes.append(f"constants are not folded: {failure.message}")
            return
        if error > ROUNDINGS_OF_MODEL:
            self._notes.append(f"constants are not folded: outputs differ by {number(error)}")
            return
        self.network, self._error, self._folded = network, error, folded

    def _replace(
        self, errors: dict[Candidate, float]
    ) -> tuple[dict[Candidate, Replaced], list[LeftAlone]]:
        """Make all replacements; undo them one by one, worst first, until outputs agree."""
        standing = list(errors)
        undone: list[LeftAlone] = []
        while standing:
            model = self.network.copy()
            done = replace_all(model, [_replacement(c) for c in standing])
            try:
                network = self._normal(model)
                error = self._whole_error(network)
                reason = f"an output differs by {number(error)}"
            except (CaseError, RunFailed) as failure:
                error, reason = inf, failure.message
            if error <= ROUNDINGS_OF_MODEL:
                self.network, self._error = network, error
                return dict(zip(standing, done, strict=True)), undone
            worst = max(standing, key=errors.__getitem__)
            standing.remove(worst)
            undone.append(_undone(worst, f"with all replacements made, {reason}"))
        return {}, undone

    def _normal(self, model: ir.Model) -> Network:
        network = normalise(model, path=self.network.path, sha256=self.network.sha256)
        kept = {node_name(n) for n in network.model.graph.all_nodes()}
        names = {n: old for n, old in self.network.original_names.items() if n in kept}
        return Network(network.model, self.network.path, self.network.sha256, names)

    def _whole_error(self, network: Network) -> float:
        session = Session(network.model, runtime=self._runtime)
        outputs = (
            (before, session.run(s))
            for before, s in zip(self._references, self._samples, strict=True)
        )
        return max(
            max((relative_error(a, after[name]) for name, a in before.items()), default=0.0)
            for before, after in outputs
        )

    def _local_errors(self, patterns: list[Candidate]) -> dict[Candidate, float]:
        """Return each replacement's own error: its new node alone, on what the old ones read."""
        values = {v.name: v for n in self.network.nodes() for v in n.outputs}
        values |= {v.name: v for v in self.network.graph.inputs}
        errors = dict.fromkeys(patterns, 0.0)
        for start in range(0, len(patterns), TENSORS_AT_ONCE):
            self._progress(start, len(patterns), "rewritings")
            made = {c: _replacement(c) for c in patterns[start : start + TENSORS_AT_ONCE]}
            session = Session(self._probe(made.values()), runtime=self._runtime)
            models = {c: alone(m, values[m.x], self.network.model) for c, m in made.items()}
            new = {c: Session(model, runtime=self._runtime) for c, model in models.items()}
            for sample in self._samples:
                seen = {**sample, **session.run(sample)}
                for c, m in made.items():
                    after = new[c].run({m.x: seen[m.x]})[m.output]
                    errors[c] = max(errors[c], relative_error(seen[m.output], after))
        return errors

    def _probe(self, some: Iterable[Replacement]) -> ir.Model:
        """Return the network with the inputs and outputs of some replacements as outputs."""
        probe = self.network.copy()
        ends = {name for made in some for name in (made.x, made.output)}
        ends -= {v.name for v in (*probe.graph.outputs, *probe.graph.inputs)}
        probe.graph.outputs.extend(v for n in probe.graph for v in n.outputs if v.name in ends)
        return probe


def _replacement(candidate: Candidate) -> Replacement:
    assert candidate.replacement is not None
    return candidate.replacement


def _undone(candidate: Candidate, reason: str) -> LeftAlone:
    return LeftAlone(op=candidate.op, nodes=candidate.nodes, reason=f"undone: {reason}")


MAP_SUFFIX = ".map.json"


@bounded
def modernize(
    model: Model,
    out: str | Path,
    inputs: Inputs = RANDOM,
    *,
    trt_version: str | None = None,
    transpose: bool = False,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Modernized:
    """Write the model with a higher opset and norms and GELUs as one node each; prove it equal.

    `out.map.json`, next to `out`, gets the record, with new node names by old name.

    Args:
        model: FP32 model.
        out: ONNX file to write; must not exist.
        inputs: Samples, as for `fix`; random numbers by default.
        trt_version: TensorRT that will read it. Default: that of the worker configured or named in
            `options`, else 10.0.
        transpose: Add Transposes around norms over other axes than the last.
        watcher: Receives progress.
        options: See `Options`.

    Raises:
        HalfwiseError: the model, the inputs or an option cannot be used.
    """
    watcher = watcher or Silent()
    path = file_named(out, ".onnx")
    refuse_existing_file(path, MAP_SUFFIX)
    worker, others = split(options, WorkerNames)
    request = understand(inputs, others)
    if trt_version is None:
        version, target = _version_of_worker(worker, watcher)
    else:
        version = known_version(trt_version, oldest=OLDEST_PARSER)
        target = f"TensorRT {trt_version}"
    case = load_asked(model, request, watcher, split=False)
    if case.stored.formats:
        raise CaseError(
            f"The model stores {' and '.join(case.stored.formats)}; its weights are already "
            "rounded.",
            "Modernize the FP32 model, then lower it with `halfwise fix`.",
        )
    network, record = modernize_case(
        case,
        request.settings,
        watcher,
        opset=highest_opset(version),
        available=[op for op in FIRST_OPSET if has_operator(op, version)],
        target=target,
        transposes=transpose,
    )
    _write(network, record, path, request.settings)
    return record


def _version_of_worker(named: dict[str, Any], watcher: Watcher) -> tuple[tuple[int, int], str]:
    """Return the TensorRT version to write for, and its source."""
    spec = resolve(**named)[0]
    if spec.source != "default":
        watcher.stage("worker")
        watcher.left(ANSWER_SECONDS)
        try:
            with Worker(spec.name, spec.command, limit=ANSWER_SECONDS) as worker:
                text = worker.info.tensorrt
        except BackendMissing as error:
            raise BackendMissing(error.message, "Name the version: --trt-version 10.0.") from error
        if text:
            return version_of(text), f"TensorRT {text}, that of worker {spec.name}"
    return version_of(DEFAULT_PARSER), (
        f"TensorRT {DEFAULT_PARSER} and later; --trt-version names another"
    )


def _write(network: Network, record: Modernized, path: Path, settings: Settings) -> None:
    with new_file(path, MAP_SUFFIX) as new:
        save_checked(network.model, new, runtime=settings.runtime)
        text = record.model_dump_json(indent=1) + "\n"
        new.with_name(f"{new.name}{MAP_SUFFIX}").write_text(text, encoding="utf-8")


def modernize_case(
    case: Case,
    settings: Settings,
    watcher: Watcher,
    *,
    opset: int,
    available: Collection[str],
    target: str,
    transposes: bool,
) -> tuple[Network, Modernized]:
    """Return the modernized network and the record of what was done.

    Args:
        case: The FP32 model and its samples, none held out.
        settings: Device and low format.
        watcher: Receives progress.
        opset: The highest the target reads.
        available: The target's operators.
        target: The target in words.
        transposes: Whether to add Transposes around norms over other axes than the last.

    Raises:
        CaseError, RunFailed: the model cannot be lowered, or does not run on the samples.
    """
    samples = case.calibration.select(range(min(DETAIL_SAMPLES, len(case.calibration))))
    watcher.stage("modernize")
    check(case.network, runtime=settings.runtime)
    modernizer = Modernizer(case.network, samples, runtime=settings.runtime, progress=watcher.step)
    proven = modernizer.run(opset, available, transposes=transposes)
    before, after = _low_verdicts(case, proven.network, settings, watcher)
    return proven.network, Modernized(
        model=str(case.network.path or "in memory"),
        opset=case.network.opset,
        new_opset=proven.network.opset,
        target=target,
        rewritings=proven.rewritings,
        left=proven.left,
        folded=proven.folded,
        names=_names(proven, case.network),
        nodes=sum(1 for _ in case.network.nodes()),
        new_nodes=sum(1 for _ in proven.network.nodes()),
        samples=samples.ids,
        real=case.real,
        made_up=case.made_up,
        error=proven.error,
        fp16_before=before,
        fp16_after=after,
        notes=(*(note_text(n) for n in case.notes if n.severity == "warning"), *proven.notes),
    )


def _names(proven: Proven, network: Network) -> dict[NodeName, tuple[NodeName, ...]]:
    """Return the replacements of each removed node, by its name in the user's file."""
    names: dict[NodeName, tuple[NodeName, ...]] = dict.fromkeys(proven.folded, ())
    for rewriting in proven.rewritings:
        names |= dict.fromkeys(rewriting.removed, rewriting.added)
    original = network.original_names
    return {NodeName(original.get(old) or old): new for old, new in names.items()}


def _low_verdicts(
    case: Case, new: Network, settings: Settings, watcher: Watcher
) -> tuple[Verdict | None, Verdict | None]:
    """Return verdicts on both models with every node low; None on made-up data not accepted."""
    if not (case.real or settings.allow_random):
        return None, None
    stages = Stages(watcher, nodes_of(case.network))
    case = replace(case, calibration=case.calibration.with_progress(watcher.step))
    with stages("reference"):
        references, nonfinite = inspected_reference(
            case.network, case.calibration, runtime=settings.runtime
        )
    verdicts = []
    for network in (case.network, new):
        with stages("judge"):
            judged = judge(
                all_low(network, settings.fmt, settings),
                case.calibration,
                references,
                case.criterion,
                case.metric,
                reference_nonfinite=nonfinite,
                inside=False,
                runtime=settings.runtime,
            )
        verdicts.append(judged.verdict)
    return verdicts[0], verdicts[1]


_NOT_REAL = "Compared on random inputs: give --inputs to compare on real data."


def modernized(record: Modernized) -> Report:
    """Return the report: what was rewritten and left, the proof, and FP16's effect."""
    parts = (_rewritings(record), _not_rewritten(record), _proof(record), _fp16(record))
    return Report(
        _title(record),
        None,
        " · ".join((sentence(record.model), f"for {clean(record.target)}")),
        present(*parts),
        _caution(record),
    )


def _caution(record: Modernized) -> str:
    """Return why nothing is said about FP16, or why that says little; empty for real data."""
    if record.real:
        return ""
    if not record.made_up:
        return _NOT_REAL
    why = capital(not_real(record.made_up, accepted=record.fp16_before is not None))
    return f"{why}."


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
        f"{clean(op)} ×{len(some)}: {sentence(reason)}{_later(op, record)}; "
        f"from {shorten(some[0].nodes[0])}"
        for (op, reason), some in reasons.items()
    ]
    return Lines("Left alone", tuple(lines[:MOST_ROWS])) if lines else None


def _later(op: str, record: Modernized) -> str:
    """Return the first TensorRT that reads an operator's opset, if the new model's is too low."""
    opset = FIRST_OPSET.get(op, 0)
    version = first_reading(opset) if record.new_opset < opset else None
    if version is None:
        return ""
    first = text_of(version)
    return f" (TensorRT {first} and later read opset {opset}: --trt-version {first})"


def _proof(record: Modernized) -> Lines:
    lines = [
        f"Outputs in FP32 on {count(len(record.samples), 'sample')}: off by at most "
        f"{number(record.error)} of the largest value."
    ]
    if record.folded:
        lines.append(f"Folded {count(len(record.folded), 'node')} that computed constants.")
    lines += [sentence(note) for note in record.notes]
    return Lines("Proof", tuple(lines))


def _fp16(record: Modernized) -> Lines | None:
    if record.fp16_before is None or record.fp16_after is None:
        return None
    verdicts = {"before": record.fp16_before, "after": record.fp16_after}
    lines = [line for when, verdict in verdicts.items() for line in _verdict(when, verdict)]
    return Lines("Everything in FP16, by emulation", tuple(lines))


def _verdict(when: str, verdict: Verdict) -> Iterator[str]:
    yield f"{when}: {'passed' if verdict.passed else 'failed'}" + "".join(
        f"; {sentence(reason)}" for reason in reasons(verdict.failures)
    )
