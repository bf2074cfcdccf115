"""The options that commands share; their names, and only their names, are those of `api.Options`.

None of them has a default here: one that is not given is not passed on, so that the library's own
default holds. The help texts tell it, and a test compares them.
"""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from halfwise.cli.trust import Trust

_data = partial(typer.Option, rich_help_panel="Data")
_acceptance = partial(typer.Option, rich_help_panel="Acceptance")
_plan = partial(typer.Option, rich_help_panel="Plan")
_worker = partial(typer.Option, rich_help_panel="TensorRT")
_engine = partial(typer.Option, rich_help_panel="Engines")
_shapes = partial(_engine, metavar="SPEC")
_running = partial(typer.Option, rich_help_panel="Running")

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Floating-point ONNX model.", show_default=False)
]
_inputs = _data(
    metavar="DATA",
    help="Real inputs: .npz, .npy or Polygraphy .json file, folder, file.py:function, or the "
    "word random.",
    show_default=False,
)
InputsOption = Annotated[str, _inputs]
MaybeInputsOption = Annotated[str | None, _inputs]
JsonOption = Annotated[
    bool, _running("--json", help="Print the record as JSON on standard output, and nothing else.")
]


class Reading:
    """How inputs are read."""

    preprocess: Annotated[
        str | None, _data(metavar="FILE:FUNCTION", help="From an image's path to model inputs.")
    ]


class Data(Reading):
    """How inputs are read, and whether random ones count."""

    allow_random: Annotated[
        bool | None, _data("--allow-random", help="Judge even on random inputs.")
    ]
    seed: Annotated[int | None, _data(metavar="N", help="Seed of random inputs. Default 0.")]


class Labels:
    """Labels of the inputs."""

    labels: Annotated[
        str | None, _data(metavar="FILE", help="One label per sample, for the metric.")
    ]


class Heldout:
    """A second set for the verdict."""

    heldout: Annotated[
        str | None,
        _data(metavar="DATA", help="Samples for the verdict. Default: every fourth input."),
    ]
    heldout_labels: Annotated[
        str | None, _data(metavar="FILE", help="One label per held-out sample.")
    ]


class Acceptance:
    """What is good enough."""

    max_abs: Annotated[
        float | None, _acceptance(metavar="X", help="Largest absolute error of an output.")
    ]
    rel_max: Annotated[
        float | None,
        _acceptance(
            metavar="X",
            help="Largest error over largest reference value. Default 0.01 where nothing is given.",
        ),
    ]
    snr_db: Annotated[
        float | None, _acceptance(metavar="X", help="Smallest signal-to-noise ratio in dB.")
    ]
    cosine: Annotated[float | None, _acceptance(metavar="X", help="Smallest cosine similarity.")]
    agreement: Annotated[
        float | None,
        _acceptance(
            metavar="X",
            help="Smallest share of equal elements in integer outputs. Default 0.99.",
        ),
    ]
    metric: Annotated[
        str | None,
        _acceptance(
            metavar="M",
            help="Task metric that decides instead: a built-in name such as top1, or "
            "file.py:function.",
        ),
    ]
    metric_drop: Annotated[
        float | None,
        _acceptance(
            metavar="X",
            help="How far the metric may fall. Default 0.01 for top1 and mask-iou, 0.1 for epe and "
            "psnr, 60 for psnr without labels; none for file.py:function.",
        ),
    ]


class Low:
    """The low format."""

    to: Annotated[Literal["fp16", "bf16"] | None, _plan(help="The low format. Default fp16.")]


class Plan:
    """What the mixed model may look like."""

    keep: Annotated[
        list[str] | None,
        _plan(
            metavar="N",
            help="Keep these nodes in FP32: name, regular expression, or outputs. Repeatable.",
        ),
    ]
    keep_op: Annotated[
        list[str] | None,
        _plan(metavar="TYPE", help="Keep all nodes of this operator type. Repeatable."),
    ]
    lower: Annotated[
        list[str] | None,
        _plan(
            metavar="N",
            help="Never keep these nodes: name or expression. Lowers operators of custom domains "
            "too. Repeatable.",
        ),
    ]
    start_from: Annotated[
        str | None,
        _plan(metavar="PATH", help="Mixed ONNX model or run folder to start the search from."),
    ]
    keep_above: Annotated[
        float | None,
        _plan(metavar="LIMIT", help="Keep what produces larger values, instead of searching."),
    ]
    io: Annotated[
        Literal["fp32", "fp16", "bf16"] | None,
        _plan(help="Float inputs and outputs: fp32, or as --to; low ones stay low. Default fp32."),
    ]
    headroom: Annotated[
        float | None,
        _plan(metavar="X", help="Overflow at X times the observed range counts. Default 2."),
    ]
    margin: Annotated[
        float | None,
        _plan(metavar="X", help="Part of the tolerance that the search may use. Default 0.8."),
    ]
    time_budget: Annotated[
        float | None, _plan(metavar="S", help="Seconds for the search. Default 300.")
    ]


class Arithmetic:
    """What is assumed of the hardware."""

    accumulate: Annotated[
        Literal["fp32", "fp16"] | None, _running(help="Sums inside FP16 ops. Default fp32.")
    ]


class Running:
    """Where the model runs."""

    device: Annotated[Literal["cpu", "cuda"] | None, _running(help="Where to run. Default cpu.")]
    ort_library: Annotated[
        list[Path] | None,
        _running(metavar="PATH", help="Custom operators for ONNX Runtime. Repeatable."),
    ]


class Worker(Trust):
    """Where TensorRT is."""

    trt_python: Annotated[
        str | None,
        _worker(metavar="PATH", help="Python that can import tensorrt. Default: this one."),
    ]
    trt_command: Annotated[
        str | None,
        _worker(
            metavar="CMD",
            help='Command that ends in such a Python: "ssh orin python3", "docker run -i --gpus '
            'all IMAGE python3".',
        ),
    ]
    trt_worker: Annotated[
        str | None, _worker(metavar="NAME", help="Worker of that name in halfwise.toml.")
    ]


class Workers(Trust):
    """Where TensorRT is, in several places."""

    trt_python: Annotated[
        list[str] | None,
        _worker(metavar="PATH", help="Python that can import tensorrt. Default: this one."),
    ]
    trt_command: Annotated[
        list[str] | None,
        _worker(metavar="CMD", help='Command that ends in one: "ssh orin python3". Repeatable.'),
    ]
    trt_worker: Annotated[
        list[str] | None,
        _worker(metavar="NAME", help="Worker of that name in halfwise.toml. Repeatable."),
    ]


class BuildLimit:
    """How long a build may take."""

    build_timeout: Annotated[
        float | None, _engine(metavar="S", help="Seconds for one build. Default 1800.")
    ]


class RunLimit:
    """How long an inference may take."""

    run_timeout: Annotated[
        float | None,
        _running(metavar="S", help="Seconds of one run. Default 300; 40 in models with Loops."),
    ]


class Target:
    """Whether engines are built, and at most how many."""

    target: Annotated[
        Literal["tensorrt"] | None,
        _engine(help="Build engines, and let their own outputs decide."),
    ]
    builds: Annotated[
        int | None,
        _engine(metavar="N", help="Builds of the delivered plan in weak typing. Default 3."),
    ]
    max_builds: Annotated[
        int | None,
        _engine(metavar="N", help="Builds that the search for a plan may use. Default 6."),
    ]
    prefer: Annotated[
        Literal["speed", "memory", "exact"] | None,
        _engine(help="What decides between engines that are equally fast. Default speed."),
    ]
    resume: Annotated[
        bool | None,
        _engine("--resume", help="Go on after a run that ended early, without what crashed."),
    ]


class Building:
    """How engines are built. Names of trtexec are taken as trtexec has them."""

    typing: Annotated[
        Literal["weak", "strong"] | None,
        _engine(help="Typing regime. Default: that of the version; strong from 10.0 on."),
    ]
    min_shapes: Annotated[
        list[str] | None,
        _shapes(
            "--minShapes",
            help="As for trtexec: name:1x3x224x224,… Repeatable, one per profile. Default: from "
            "the inputs.",
        ),
    ]
    opt_shapes: Annotated[
        list[str] | None, _engine("--optShapes", metavar="SPEC", help="Likewise.")
    ]
    max_shapes: Annotated[
        list[str] | None, _engine("--maxShapes", metavar="SPEC", help="Likewise.")
    ]
    timing_cache: Annotated[
        Path | None, _engine(metavar="FILE", help="Timing cache to read and write.")
    ]
    workspace: Annotated[
        str | None,
        _engine(metavar="SIZE", help="Workspace of a layer: 4G, 512M; a bare number is MiB."),
    ]
    optimization_level: Annotated[
        int | None, _engine(metavar="N", help="Builder optimization level, 0 to 5.")
    ]
    tactic_sources: Annotated[
        str | None, _engine(metavar="NAMES", help="Tactic sources, separated by commas.")
    ]
    plugin: Annotated[
        list[str] | None,
        _engine(metavar="PATH", help="Plugin library on the worker's side. Repeatable."),
    ]
    tf32: Annotated[
        bool | None,
        _engine("--tf32", help="Let what is kept in FP32 be TF32: 11 significant bits."),
    ]


def accepts(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command all options of `groups` in place of `**options`.

    The command finds those that were given in `options`.
    """
    declared: dict[str, Any] = {}
    for group in groups:
        declared |= get_type_hints(group, include_extras=True)
    offered = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in declared.items()
    ]

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            absent = {name for name in declared if _is_absent(values.get(name))}
            command(**{name: value for name, value in values.items() if name not in absent})

        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())
        ordered = [
            *(p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD),
            *offered,
            *(p for p in own if p.kind is p.KEYWORD_ONLY),
        ]
        # Typer reads the signature to learn a command's options.
        run.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
        return run

    return declare


def _is_absent(value: object) -> bool:
    # Not `in (None, False, [])`: 0 equals False, and --seed 0 is a seed.
    return value is None or value is False or value == []
