"""The models that the GPU benches fix, how they are judged, and the options that all share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.gpu import models
from bench.gpu.models import DIGITS
from bench.gpu.networks import NETWORKS
from bench.runs import JUDGING

TOLERANCE = 0.05
"""Largest absolute error of the digits models' logits, which reach about 5."""
BATCH = 32


@dataclass(frozen=True)
class Host:
    """Where engines are built.

    Attributes:
        trt_python: The interpreter that imports tensorrt.
        tactic_sources: Names of tactic sources, comma-separated; empty for TensorRT's default.
        models: Folder of the published models, or None.
    """

    trt_python: str
    tactic_sources: str
    models: Path | None

    def options(self) -> list[str]:
        """Return the options of `halfwise fix` that name this host."""
        sources = (
            ["--engine", f"tactic-sources={self.tactic_sources}"] if self.tactic_sources else []
        )
        return ["--target", "tensorrt", "--trt-command", self.trt_python, *sources]

    def subject(self, name: str) -> tuple[Path, Path]:
        """Return model and inputs of the bundled example or of a published model."""
        folder = DIGITS if name == "digits" else (self.models or Path()) / name
        return folder / "model.onnx", folder / "inputs.npz"

    def sources(self) -> list[str] | None:
        """Return the tactic sources as a list; None for TensorRT's default."""
        return self.tactic_sources.split(",") if self.tactic_sources else None


def add_host(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a host."""
    parser.add_argument("--trt-python", required=True, help="interpreter that imports tensorrt")
    parser.add_argument("--tactic-sources", default="", help="comma-separated; default: all")
    parser.add_argument("--models", type=Path, help="folder of the published models")


def host_of(given: argparse.Namespace) -> Host:
    """Return the host that these options name."""
    return Host(given.trt_python, given.tactic_sources, given.models)


@dataclass(frozen=True)
class Job:
    """A model to fix for TensorRT.

    Attributes:
        make: Makes it; None for a published model, which lies in the models folder.
        judging: Options that judge it.
        options: Further options of `halfwise fix`.
        tolerance: Largest absolute error that its delivered engine may have; None if only the
            criterion in `judging` applies.
        fast: Whether its latency is judged, at batch `BATCH`.
        bisect: Whether Polygraphy bisects it for comparison.
        seconds: When to give up on `halfwise fix`.
        published: Folder of a published model, if not named like the job.
        as_tf32: Whether the delivered engine must be no slower than TF32's, if that is within the
            tolerance.
        race: Whether the delivered engine is timed in turns with a user's alternatives.
    """

    make: Callable[[], models.Made] | None = None
    judging: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    tolerance: float | None = None
    fast: bool = False
    bisect: bool = False
    seconds: float = 540.0
    published: str | None = None
    as_tf32: bool = False
    race: bool = False


def _shapes(low: int, best: int) -> tuple[str, ...]:
    tail = "3x224x224"
    return (
        *("--engine", f"minShapes=images:{low}x{tail}"),
        *("--engine", f"optShapes=images:{best}x{tail}"),
        *("--engine", f"maxShapes=images:{best}x{tail}"),
    )


_DIGITS = ("--require", f"max-abs={TOLERANCE}")
# A build of these takes a minute or so: confirm with one more, and try fewer plans.
_TWICE = ("--engine", "repeat=2")
_FEW = ("--budget", "builds=3", "--engine", "repeat=2")
# At the default level 3, where convolutions are compiled at build time, one engine of these takes
# 2 to 6 minutes on an H200.
_QUICK = ("--engine", "optimization-level=2")

JOBS: Mapping[str, Job] = {
    "digits": Job(
        models.digits, _DIGITS, _TWICE, tolerance=TOLERANCE, bisect=True, seconds=240, race=True
    ),
    "digits_ffn": Job(
        models.digits_ffn, _DIGITS, _TWICE, tolerance=TOLERANCE, bisect=True, seconds=240
    ),
    "resnet50": Job(models.resnet50, options=(*_shapes(1, BATCH), *_FEW), fast=True),
    "vit_b": Job(models.vit_b16, options=(*_shapes(1, BATCH), *_FEW), fast=True),
    "vit_b_layernorm": Job(
        models.vit_b16_layernorm, options=(*_shapes(1, BATCH), *_FEW), fast=True
    ),
    "magika": Job(judging=JUDGING["magika"]),
    # At the default tolerance, with builds enough to ask for each kept node.
    "magika_default": Job(
        published="magika", options=("--budget", "builds=20", "--engine", "repeat=2")
    ),
    "yolox_nano": Job(
        judging=JUDGING["yolox_nano"],
        options=("--budget", "builds=3", "--engine", "repeat=1", *_QUICK),
    ),
    # FP16 loses the small powers of its spectrogram, and half of the mixed plans cannot be built:
    # this many builds give every alternative to a refused plan its turn.
    "basic_pitch": Job(options=("--budget", "builds=12"), as_tf32=True, race=True),
    # On these windows TF32 is off by 2 %.
    "basic_pitch_wide": Job(judging=("--rel-max", "0.05"), published="basic_pitch", as_tf32=True),
    "ppocr_v3_det": Job(judging=JUDGING["ppocr_v3_det"], options=(*_FEW, *_QUICK)),
    **{name: Job(make, seconds=300, race=True) for name, make in NETWORKS.items()},
}
