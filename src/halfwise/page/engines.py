"""The engines' section of the page: builds, layers and their precision."""

from collections.abc import Iterator, Sequence

from halfwise.page.data import Data, Interned, Section, Stored, front_coded
from halfwise.page.plans import tried_builds
from halfwise.records import (
    BuildOutcome,
    Engines,
    LogFinding,
    NodeName,
    PrecisionProof,
    Run,
    WorkerInfo,
)
from halfwise.records.run import runs
from halfwise.reporting.engines import WORDS

LOG = ("severity", "what it means", "what to do", "at", "times", "builds")
"""Columns of `log_rows`."""


def build_rows(engines: Engines, factor: float) -> Iterator[Data]:
    """Yield each build with a prediction by emulation or a measurement.

    Errors are relative to the allowed error: `predicted` is the emulation's, `measured` the
    engine's.

    Args:
        engines: The engines of one device.
        factor: Share of the tolerance that the search may use; the records' errors are relative
            to it.
    """
    for build in tried_builds(engines):
        made, row, measured = build.made, build.row, build.excess
        predicted = None if made is None else made.predicted
        if measured is None and predicted is None:
            continue
        what = "" if made is None else made.step
        yield {
            "build": build.number,
            "what": what or ("" if row is None else row.name),
            "kept": len(made.keep) if made is not None else row.kept if row is not None else 0,
            "predicted": None if predicted is None else predicted * factor,
            "measured": None if measured is None else measured * factor,
            "ms": build.milliseconds,
            "fails": not build.passes,
            "delivered": row is not None and row is engines.row,
        }


def log_rows(builds: Sequence[BuildOutcome]) -> list[list[Data]]:
    """Return the builder's messages, most severe first; each finding once, with its builds.

    Messages of one kind that differ only in their figures are one finding.
    """
    if not any(build.log for build in builds):
        return []
    from halfwise.tensorrt.log import explain  # noqa: PLC0415 (slow, and few runs have logs)

    findings: dict[tuple[str, str], list[tuple[int, LogFinding]]] = {}
    for build in builds:
        for finding in explain(build.log):
            what = finding.sentence if finding.kind == "unknown" else finding.kind
            findings.setdefault((finding.severity, what), []).append((build.number, finding))
    order = ("error", "warning", "info")
    rows = sorted(findings.items(), key=lambda item: order.index(item[0][0]))
    return [[severity, *_log_rows(group)] for (severity, _), group in rows]


def _log_rows(group: Sequence[tuple[int, LogFinding]]) -> Iterator[Data]:
    findings = [finding for _, finding in group]
    first = findings[0]
    differs = len({finding.sentence for finding in findings}) > 1
    yield f"{first.sentence}{' The figures of other builds differ.' if differs else ''}"
    yield first.hint
    yield list(dict.fromkeys(node for finding in findings for node in finding.nodes))
    yield sum(finding.count for finding in findings)
    yield ", ".join(str(number) for number, _ in group)


_JOINED = " + "
"""Separator that TensorRT puts between the names of fused nodes."""


class Layers:
    """The layers of several engines; shared values are stored once."""

    def __init__(self) -> None:
        self._nodes, self._words = Interned[NodeName](), Interned[str]()
        self._names = Interned[str]()

    def of(self, proof: PrecisionProof) -> dict[str, Data]:
        """Return the layers of an engine in columns, and its shares by precision.

        `name` is an index into the names, -1 if it is its nodes' names joined; `nodes` are indices
        into the nodes, as `records.curve.runs` writes them; `type`, `precision`, `types`, `weights`
        and `tactic` are indices into the words.
        """
        layers, word = proof.layers, self._words.of
        return {
            "name": [
                -1 if layer.name == _JOINED.join(layer.nodes) else self._names.of(layer.name)
                for layer in layers
            ],
            "nodes": [runs(map(self._nodes.of, layer.nodes)) for layer in layers],
            "type": [word(layer.type) for layer in layers],
            "precision": [word(WORDS[layer.precision]) for layer in layers],
            "types": [word(_types(layer.inputs, layer.outputs)) for layer in layers],
            "weights": [word(layer.weights) for layer in layers],
            "tactic": [word(layer.tactic) for layer in layers],
            "ms": [layer.milliseconds for layer in layers],
            "findings": proof.findings,
            "remarks": proof.remarks,
            "shares": {
                of: {WORDS[kind]: share for kind, share in shares.items()}
                for of, shares in (("nodes", proof.node_share), ("time", proof.time_share))
            },
        }

    def shared(self) -> Data:
        """Return the shared values; call it last."""
        return {
            "nodes": front_coded(self._nodes.all),
            "names": front_coded(self._names.all),
            "words": self._words.all,
        }


def _types(inputs: Sequence[str], outputs: Sequence[str]) -> str:
    sides = [", ".join(dict.fromkeys(filter(None, side))) for side in (inputs, outputs)]
    return " → ".join(side or "?" for side in sides) if any(sides) else ""


def engine(stored: Stored) -> Section | None:
    """Return the section of engines, device by device; None if the run has none."""
    run, layers = stored.run, Layers()
    devices = [*(_device(run, engines, layers) for engines in run.devices), *_of_user(run, layers)]
    if not devices:
        return None
    return Section(
        "engine",
        "Engines",
        {"devices": devices, "shared": layers.shared()},
        scripts=("columns", "scatter", "layers"),
        libraries=("uplot",),
    )


def _device(run: Run, engines: Engines, layers: Layers) -> Data:
    factor = 1.0 if run.search is None else run.search.tolerance_factor
    proofs = [
        {"engine": row.name, **layers.of(row.proof)}
        for row in engines.results
        if row.proof is not None
    ]
    delivered = engines.row
    shown = [row for row in engines.results if row.proof is not None]
    return {
        **_where(engines.worker, engines.builds),
        "engines": proofs,
        "delivered": next((i for i, row in enumerate(shown) if row is delivered), None),
        "builds": [*build_rows(engines, factor)],
        "outputs": [*_outputs(engines)],
    }


def _of_user(run: Run, layers: Layers) -> Iterator[Data]:
    """Yield the user's own engine."""
    engine = run.given_engine
    if engine is not None:
        proofs = (
            [] if engine.proof is None else [{"engine": "your engine", **layers.of(engine.proof)}]
        )
        where = _where(engine.worker, () if engine.build is None else (engine.build,))
        yield {**where, "engines": proofs, "delivered": None, "builds": [], "outputs": []}


def _where(worker: WorkerInfo, builds: Sequence[BuildOutcome]) -> dict[str, Data]:
    return {
        "device": worker.name,
        "about": f"TensorRT {worker.tensorrt or 'unknown'} on {worker.gpu or 'no GPU'}",
        "log": {"columns": LOG, "rows": log_rows(builds)},
    }


def _outputs(engines: Engines) -> Iterator[Data]:
    """Yield for each output its largest error in emulation and in the engine."""
    row, emulated = engines.row, engines.emulated
    if row is None or row.verdict is None or emulated is None:
        return
    for name, error in row.verdict.outputs.items():
        if (emulated_error := emulated.outputs.get(name)) is not None:
            yield [name, emulated_error.max_abs, error.max_abs, emulated_error.snr_db, error.snr_db]
