"""Run folders to open: what commands make of small models, and made-up runs."""

import gzip
import io
import shlex
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import onnx
import pytest

from halfwise.cli import main
from halfwise.page.document import write_page
from halfwise.store import write_evidence, write_observations, write_run
from tests import models, tasks
from tests.browser.evidence import made_evidence
from tests.browser.hostile import poisoned
from tests.browser.synthetic import Drawn, write_synthetic
from tests.models import Ill

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
RECORDED = DIGITS.parents[1] / "bench" / "results" / "gpu_resnet50_run.json.gz"
FUSED = ("square", "variance", "eps")
"""Nodes of the model with engines that are one layer."""
SAMPLES = 4
"""Of the digits, so that the demo takes seconds: its full data has 112."""


def demo(folder: Path) -> Path:
    """Return the demo's run without repairs, so that it keeps nodes."""
    for name in ("inputs", "heldout"):
        np.savez(folder / f"{name}.npz", images=np.load(DIGITS / f"{name}.npz")["images"][:SAMPLES])
    given = ("--inputs", "inputs.npz", "--heldout", "heldout.npz", "--budget", "inferences=40")
    called(folder, 0, "fix", DIGITS / "model.onnx", *given, "--no-repair", "-o", "run")
    return folder / "run"


def failed(folder: Path) -> Path:
    """Return a run whose verdict is that it failed: a rule lowers what has to be kept."""
    _save(folder, models.layer_norm())
    called(folder, 10, *_FIX, "--no-repair", "--lower", "squ.*")
    return folder / "run"


def ladder(folder: Path) -> Path:
    """Return the run of a ladder."""
    _save(folder, tasks.classifier(16))
    called(folder, 0, "ladder", *_FIX[1:], "--rel-max", "1e-4")
    return folder / "run"


def diagnosis(folder: Path) -> Path:
    """Return the run of a diagnosis."""
    _save(folder, models.layer_norm())
    called(folder, 10, "diagnose", *_FIX[1:])
    return folder / "run"


def engine(folder: Path, command: Callable[..., list[str]]) -> Path:
    """Return a run with engines of the stand-in for TensorRT; `command` makes its command."""
    _save(folder, models.layer_norm())
    worker = shlex.join(command("8.6.1", fused=(FUSED,)))
    few = ("--budget", "builds=2", "--engine", "repeat=1", "--no-repair")
    called(folder, 0, *_FIX, "--target", "tensorrt", "--trt-command", worker, *few)
    return folder / "run"


def old(folder: Path) -> Path:
    """Return a run of an H200, as it was recorded there: without evidence."""
    run = folder / "run"
    run.mkdir()
    (run / "run.json").write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return write_page(run).parent


def large(folder: Path) -> Path:
    """Return a made-up run of 5,000 nodes."""
    return write_page(write_synthetic(folder / "run", 5000)).parent


def hostile(folder: Path) -> Path:
    """Return a made-up run whose every name and message means harm."""
    drawn, run = Drawn(92), folder / "run"
    run.mkdir()
    write_run(run, poisoned(drawn.run()))
    write_observations(run, poisoned(drawn.observations()))
    write_evidence(run, poisoned(made_evidence(drawn.network, {node.name for node in drawn.keep})))
    return write_page(run).parent


_FIX = ("fix", "model.onnx", "--inputs", "model.npz", "-o", "run")


def _save(folder: Path, ill: Ill) -> None:
    onnx.save(ill.proto, folder / "model.onnx")
    np.savez(folder / "model.npz", **dict(ill.inputs))  # type: ignore[arg-type]


def called(folder: Path, code: int, *arguments: object) -> str:
    """Run `halfwise` in `folder` and in this process; return what it prints."""
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["halfwise", *map(str, arguments)])
        # Real streams: the command line reconfigures them.
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == code
        out.seek(0)
        return out.read()


MAKERS: dict[str, Callable[[Path], Path]] = {
    "demo": demo,
    "failed": failed,
    "ladder": ladder,
    "diagnosis": diagnosis,
    "old": old,
    "large": large,
    "hostile": hostile,
}
