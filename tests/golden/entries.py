"""The golden runs: what each runs on, and its options."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from bench.runs import JUDGING, REAL_MODELS, models_folder
from tests import models, tasks
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.start import build_cuda_library, forked_interpreters, worker_command
from tests.golden import cases
from tests.models import Ill
from tests.unit.fixing.int8 import products

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits"


@dataclass(frozen=True)
class Entry:
    """One run of `halfwise fix`.

    Attributes:
        name: Group, the file that holds its facts, and what it is: "classes/layer_norm".
        subject: Makes the model and its inputs, or is a folder with `model.onnx` and `inputs.npz`.
        options: Options of `halfwise fix`.
        engines: Arguments of the stand-in for TensorRT, `worker_command`; None without it.
    """

    name: str
    subject: Callable[[], Ill] | Path
    options: tuple[str, ...] = ()
    engines: Mapping[str, Any] | None = None

    @property
    def group(self) -> str:
        """The stem of the file with its facts."""
        return self.name.partition("/")[0]

    @property
    def is_here(self) -> bool:
        """Whether its model is: those of the models folder may not be."""
        return not isinstance(self.subject, Path) or (self.subject / "model.onnx").is_file()

    def words(self, folder: Path, stack: ExitStack, *, moved: int | None = None) -> list[str]:
        """Return the words of its command line; what it needs is written to `folder`.

        The stand-in for TensorRT ends with `stack`. With a seed, `moved`, each float of the inputs
        that is no whole number is moved to its neighbour above or below, equal ones to the same.
        """
        if isinstance(self.subject, Path):
            model, inputs = self.subject / "model.onnx", self.subject / "inputs.npz"
            arrays = dict(np.load(inputs)) if moved is not None else {}
        else:
            ill = self.subject()
            model, arrays = folder / "model.onnx", dict(ill.inputs)
            onnx.save(ill.proto, model)
        if arrays:
            inputs = folder / "inputs.npz"
            np.savez(inputs, **_moved(arrays, moved))  # type: ignore[arg-type]
        words = ["fix", str(model), "--inputs", str(inputs), "-o", "run"]
        if self.engines is not None:
            interpreter = stack.enter_context(forked_interpreters(folder))
            command = worker_command(
                folder, build_cuda_library(folder), interpreter=interpreter, **self.engines
            )
            words += ["--target", "tensorrt", "--trt-command", shlex.join(command)]
        return [*words, *self.options]


def _moved(arrays: Mapping[str, NDArray[Any]], seed: int | None) -> dict[str, NDArray[Any]]:
    if seed is None:
        return dict(arrays)
    rng = np.random.default_rng(seed)
    return {name: _beside(a, rng) if a.dtype.kind == "f" else a for name, a in arrays.items()}


def _beside(array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    # What is equal stays equal, as a constant row is; whole numbers, as in masks, are no roundings.
    values, at = np.unique(array, return_inverse=True)
    sides = rng.choice(np.asarray([-np.inf, np.inf], array.dtype), values.shape)
    beside = np.where(values == np.rint(values), values, np.nextafter(values, sides))
    return np.asarray(beside[at].reshape(array.shape))


UNREPAIRED = "--no-repair"


def _classes() -> Iterator[Entry]:
    for make in models.CLASSES:
        name, options = f"classes/{make.__name__}", make().options
        yield Entry(name, make, options)
        yield Entry(f"{name}/no-repair", make, (UNREPAIRED, *options))


def _digits() -> Iterator[Entry]:
    held_out = ("--heldout", str(DIGITS / "heldout.npz"))
    labels = ("--metric", "top1")
    for name, options in {
        "default": (),
        "no-repair": (UNREPAIRED,),
        "top1": labels,
        "bf16": ("--to", "bf16"),
        "int8": ("--to", "int8", *labels),
    }.items():
        yield Entry(f"digits/{name}", DIGITS, (*held_out, *options))


def _cases() -> Iterator[Entry]:
    for make in (
        *(cases.convs, cases.text_encoder, cases.flow16, cases.flow17),
        *(cases.detector, cases.cast_int, cases.frozen),
    ):
        yield Entry(f"cases/{make.__name__}", make)
        if make not in (cases.detector, cases.frozen):
            yield Entry(f"cases/{make.__name__}/no-repair", make, (UNREPAIRED,))


def _options() -> Iterator[Entry]:
    """Formats, types and rules, each on a model for which it matters."""
    for make in (models.layer_norm, models.conv_chain, models.busy_product, models.cancellation):
        yield Entry(f"options/{make.__name__}/bf16", make, ("--to", "bf16"))
    for kind in ("bf16", "tf32"):
        for make in (models.busy_product, models.conv_chain):
            name = f"options/{make.__name__}/allow-{kind}"
            yield Entry(name, make, (UNREPAIRED, "--allow", kind))
    near = models.near_the_edge
    yield Entry("options/near_the_edge/headroom", near, (UNREPAIRED, "--require", "headroom=1"))
    yield Entry("options/layer_norm/keep", models.layer_norm, (UNREPAIRED, "--keep", "gamma"))


def _int8() -> Iterator[Entry]:
    int8, loose = ("--to", "int8"), ("--require", "snr-db=25", "--allow", "random")
    beyond = partial(products.outlier, factor=200)
    for name, make, options in (
        ("outlier", products.outlier, loose),
        ("outlier-beyond-fp16", beyond, loose),
        ("residual", products.residual, loose),
        ("residual-second", partial(products.residual, "second"), loose),
        ("classifier", tasks.classifier, ()),
        ("overflowing_classifier", tasks.overflowing_classifier, ()),
        ("close_calls", tasks.close_calls, ()),
        ("convs", cases.convs, ("--require", "snr-db=20")),
        ("detector", cases.detector, ("--require", "snr-db=20")),
    ):
        yield Entry(f"int8/{name}", make, (*int8, *options))


def _tasks() -> Iterator[Entry]:
    for make in (
        *(tasks.classifier, tasks.overflowing_classifier, tasks.close_calls),
        tasks.pricing_classifier,
    ):
        yield Entry(f"tasks/{make.__name__}", make)


def _engines() -> Iterator[Entry]:
    few = ("--engine", "repeat=1", "--budget", "builds=3")
    crash = Fault("build", "segv", on=(3,))
    for name, make, options, knobs in (
        ("layer_norm/weak", models.layer_norm, (UNREPAIRED,), {"version": "8.6.1"}),
        ("layer_norm/strong", models.layer_norm, (UNREPAIRED,), {"version": "10.0.1"}),
        ("layer_norm/lossy", models.layer_norm, (UNREPAIRED,), {"lossy": {"gamma": 1.5}}),
        ("layer_norm/broken", models.layer_norm, (), {"broken": {"square": 1.5}}),
        ("conv_chain/repaired", models.conv_chain, (), {"version": "10.0.1"}),
        ("conv_chain/crash", models.conv_chain, (UNREPAIRED,), {"faults": [crash]}),
    ):
        yield Entry(f"engines/{name}", make, (*few, *options), knobs)


def _published() -> Iterator[Entry]:
    folder = models_folder() or Path("models-folder-that-is-not-named")
    for name in REAL_MODELS:
        yield Entry(f"published/{name}", folder / name, JUDGING[name])
        yield Entry(f"published/{name}/no-repair", folder / name, (*JUDGING[name], UNREPAIRED))


_GROUPS = (_classes, _digits, _cases, _options, _tasks, _int8, _engines, _published)
ENTRIES: Mapping[str, Entry] = {e.name: e for entries in _GROUPS for e in entries()}
"""Every golden run, by its name."""
