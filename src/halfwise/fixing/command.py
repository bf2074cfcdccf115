"""`fix`: the smallest set of FP32 nodes, a mixed model, and its verdict."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from halfwise.case import Case
from halfwise.declarations import Inputs, Options
from halfwise.emulation.bounded import forgiving
from halfwise.fixing.in_engines import fix_in_engines
from halfwise.fixing.loop import fix as run_fix
from halfwise.fixing.outcome import Result, fix_run
from halfwise.fixing.rewrite import save_checked
from halfwise.fixing.sizes import verdict_at_sizes
from halfwise.graph.model import Network
from halfwise.judging.frozen import frozen_named
from halfwise.judging.reference import check_types
from halfwise.linting.command import precision_remarks
from halfwise.metrics import verdict_hints
from halfwise.options.loading import load_asked, load_start, tell
from halfwise.options.options import Model, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.store import MODEL_FILE, free_folder, new_folder, write_observations, write_run


@bounded
@forgiving()
def fix(
    model: Model,
    inputs: Inputs,
    *,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Result:
    """Find the smallest set of FP32 nodes, write the mixed model, and judge it on held-out data.

    Args:
        model: FP32, FP16 or BF16 model: path or proto.
        inputs: Samples: file, folder, `file.py:function`, or arrays in memory.
        out: Run folder to make; must not exist. None writes nothing.
        watcher: Is told about progress.
        options: See `Options`.

    Raises:
        HalfwiseError: the model, the inputs or an option cannot be used. A failed verdict is no
            error: see `Result.run.verdict`.
    """
    started = time.monotonic()
    request = understand(inputs, options)
    folder = free_folder(out)
    start = None if request.start_from is None else load_start(request.start_from)
    if isinstance(start, Network):
        check_types(start, runtime=request.settings.runtime)
    watcher = watcher or Silent()
    case = _linted(load_asked(model, request, watcher), watcher)
    with frozen_named(case, request.settings):
        if request.target is not None:
            return fix_in_engines(case, request, watcher, start=start, out=folder, started=started)
        fixed = run_fix(case, request.settings, watcher, start_from=start)
    fixed = replace(fixed, verdict=verdict_at_sizes(fixed, case, request.settings))
    hints = verdict_hints(case.criterion, fixed.references)
    run = fix_run(case, request, fixed, time.monotonic() - started, hints, folder)
    if folder is not None:
        with new_folder(folder) as partial:
            save_checked(
                fixed.rewritten.model,
                partial / MODEL_FILE,
                runtime=request.settings.runtime,
            )
            write_observations(partial, fixed.observations)
            write_run(partial, run)
    return Result(run, folder, fixed.rewritten.model)


def _linted(case: Case, watcher: Watcher) -> Case:
    """Return the case with what the linter has against its file among the notes."""
    remarks = precision_remarks(case.network)
    tell(watcher, remarks)
    return replace(case, notes=(*case.notes, *remarks))
