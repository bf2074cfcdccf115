"""Runs benches on a GPU one after another, the most important first, within a given time.

    python -m bench.gpu.session --trt-python PYTHON [--models DIR] --work DIR --minutes M [STEP …]

Each step is a separate process with its own time limit, and writes its result when it ends, so that
neither a crash nor the end of the time loses earlier results. `STEPS` sets the order; a step is
skipped if less than `LEAST` seconds are left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.figures import RESULTS
from bench.gpu.jobs import add_host
from bench.runs import ROOT

LEAST = 25.0
GRACE = 5.0
"""Seconds for a terminated process to end its own children."""


@dataclass(frozen=True)
class Step:
    """One process.

    Attributes:
        bench: Module of `bench.gpu`.
        words: Its other arguments.
        seconds: Its time limit.
    """

    bench: str
    words: Sequence[str]
    seconds: float


def _fix(name: str, seconds: float = 200.0) -> Step:
    return Step("figures", (name,), seconds)


STEPS: Mapping[str, Step] = {
    "int8": Step("int8", ("resnet50", "vit_b"), 480.0),
    "int8_small": Step("int8", ("small",), 560.0),
    "int8_residuals": Step("int8", ("resnet50",), 240.0),
    "int8_product": Step("int8_causes", ("query_detector:decoder.0/ffn/fc1/MatMul",), 240.0),
    "int8_forms": Step("int8_causes", ("digits_ffn:plan forms",), 240.0),
    "repairs": Step("repairs", (), 360.0),
    "gtcrn": Step("triage", ("--parts", "diagnose", "--", "gtcrn"), 330.0),
    "lstm_tagger": _fix("lstm_tagger"),
    "gru_denoiser": _fix("gru_denoiser"),
    "digits": _fix("digits", 300.0),
    "text_encoder": _fix("text_encoder"),
    "query_detector": _fix("query_detector"),
    "shifted_windows": _fix("shifted_windows"),
    "diffusion_unet": _fix("diffusion_unet"),
    "audio_encoder": _fix("audio_encoder"),
    "flow_transformer": _fix("flow_transformer"),
    "basic_pitch": _fix("basic_pitch", 280.0),
}


def run(steps: Mapping[str, Step], given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Run the steps in order; yield the name of each and how it ended."""
    end = time.monotonic() + 60 * given.minutes
    host = [f"--trt-python={given.trt_python}", f"--tactic-sources={given.tactic_sources}"]
    if given.models is not None:
        host.append(f"--models={given.models.resolve()}")
    for name, step in steps.items():
        left = end - time.monotonic()
        if left < LEAST:
            yield name, "no time left"
            continue
        seconds = min(step.seconds, left)
        folders = [f"--work={given.work.resolve() / step.bench}", f"--results={given.results}"]
        # It ends by itself a little earlier, with its results so far.
        own = seconds - LEAST / 2
        within = [f"--seconds={own}"]
        if step.bench == "figures":
            within = [f"--minutes={own / 60}", f"--options={given.options}"]
        words = [sys.executable, "-m", f"bench.gpu.{step.bench}", *host, *folders, *within]
        started = time.monotonic()
        code = _ended([*words, *step.words], seconds)
        yield name, f"{code} after {time.monotonic() - started:.0f} s"


def _ended(words: Sequence[str], seconds: float) -> str:
    """Return the exit code of a process, or that it took too long; its children are ended."""
    with subprocess.Popen(words, cwd=ROOT, start_new_session=True) as child:
        try:
            return str(child.wait(seconds))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        return "too long"


def main() -> int:
    """Run the steps that the command line names, by default all; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="STEP", help=f"among {', '.join(STEPS)}")
    add_host(parser)
    parser.add_argument("--work", type=Path, required=True, help="takes models and runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="takes gpu_<name>.json")
    parser.add_argument("--minutes", type=float, default=18.0, help="for all of them")
    parser.add_argument("--options", default="", help="further ones of `halfwise fix`")
    given = parser.parse_args()
    if unknown := [n for n in given.names if n not in STEPS]:
        parser.error(f"there is no {', '.join(unknown)}, but {', '.join(STEPS)}")
    ended = {}
    for name, how in run({n: STEPS[n] for n in given.names or STEPS}, given):
        ended[name] = how
        print(f"{name}: {how}", flush=True)
    print("\n".join(f"  {name}: {how}" for name, how in ended.items()))
    return 0 if all(how.startswith("0 ") for how in ended.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
