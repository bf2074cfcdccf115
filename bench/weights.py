"""Repairs written back into PyTorch modules that overflow in FP16.

    python bench/run.py weights

`bench/exports/with_weights.py` makes the modules, in a virtual environment of its own (6 GB,
network), and computes them in FP32 and after `module.half()` on the CPU, with what the notes of
`export` name set.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import halfwise
from bench.figures import Figure, at_most, equal
from bench.peers.environments import environment
from bench.runs import CommandFailed, Subject, Workbench
from halfwise.errors import CaseError

HERE = Path(__file__).resolve().parent
SCRIPT = str(HERE / "exports" / "with_weights.py")
FUNCTION, HALF = 1e-5, 1e-2
"""What a module's outputs may differ, over the largest: in FP32, and after `half()`."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Export, fix, write back and load; return figures, and what could not be installed."""
    place = environment("weights", HERE / "requirements-weights.txt")
    if place.missing:
        return [], place.missing
    folder = bench.folder / "weights"
    folder.mkdir()

    def run(*arguments: str) -> str:
        command = [place.python, SCRIPT, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        if done.returncode:
            raise CommandFailed(" ".join(done.stderr.strip().splitlines()[-3:]))
        return done.stdout

    run("export", str(folder))
    figures = list[Figure]()
    for model in sorted(folder.glob("*.onnx")):
        name, inputs = model.stem, model.with_suffix(".npz")
        fixed = bench.fix(Subject(name, model, inputs, ("--only", "fp16", "--allow", "random")))
        state, new = model.with_suffix(".safetensors"), folder / f"{name}.new.safetensors"
        try:
            halfwise.export_weights(fixed.folder, state_dict=state, out=new)
        except CaseError as error:
            figures.append(equal(f"{name}: repairs fold into weights", False, True, str(error)))
            continue
        measured = json.loads(run("judge", str(folder), name).splitlines()[-1])[name]
        note = (
            f"{measured['changed']} values changed, {len(measured['by_hand'])} of them by hand; "
            f"{measured['not_folded']} repairs not folded; without them {measured['before']}"
        )
        figures.append(at_most(f"{name}: FP32, difference", measured["fp32"], FUNCTION))
        figures.append(at_most(f"{name}: half(), difference", measured["half"], HALF, note))
    return figures, None
