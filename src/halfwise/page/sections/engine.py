"""Real engines: emulation against engine, precision and time by layer, builders' messages."""

from collections.abc import Iterator, Sequence

from halfwise.page.builds import LOG, build_rows, log_rows
from halfwise.page.data import Data
from halfwise.page.layers import Layers
from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.records import BuildOutcome, Engines, Run, WorkerInfo


def engine(stored: Stored) -> Section | None:
    """Return the section of engines, device by device; None if the run has none."""
    run, layers = stored.run, Layers()
    devices = [*(_device(run, engines, layers) for engines in run.devices), *_given(run, layers)]
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
    own = engines.row
    shown = [row for row in engines.results if row.proof is not None]
    return {
        **_where(engines.worker, engines.builds),
        "engines": proofs,
        "delivered": next((i for i, row in enumerate(shown) if row is own), None),
        "builds": [*build_rows(engines, factor)],
        "outputs": [*_outputs(engines)],
    }


def _given(run: Run, layers: Layers) -> Iterator[Data]:
    """Yield the user's own engine."""
    given = run.given_engine
    if given is not None:
        proofs = (
            [] if given.proof is None else [{"engine": "your engine", **layers.of(given.proof)}]
        )
        where = _where(given.worker, () if given.build is None else (given.build,))
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
        if (told := emulated.outputs.get(name)) is not None:
            yield [name, told.max_abs, error.max_abs, told.snr_db, error.snr_db]
