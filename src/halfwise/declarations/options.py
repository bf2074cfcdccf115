"""The declared options, in the groups that commands take."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ForwardRef, Literal, TypedDict, get_args

from halfwise.declarations.option import COUNT, NOT_NEGATIVE, SECONDS, Domain, Option

if TYPE_CHECKING:
    from numpy import ndarray
else:
    # Callers that inspect a function's types have loaded NumPy; `halfwise --help` has not.
    ndarray = ForwardRef("ndarray", module="numpy")


Inputs = (
    str | Path | Mapping[str, ndarray] | Mapping[str, str | Path] | Sequence[Mapping[str, ndarray]]
)
"""A file, a folder, `name=path,name=path` or {input name: path}, `file.py:function`, "random", or
arrays in memory."""

_data = partial(Option, panel="Data")
_acceptance = partial(Option, panel="Acceptance")
_threshold = partial(_acceptance, metavar="X")
_demand = partial(_threshold, group="--require")
_allowed = partial(_acceptance, group="--allow")
_plan = partial(Option, panel="Plan")
_running = partial(Option, panel="Running")
_limit = partial(_running, group="--budget")


class Heldout(TypedDict, total=False):
    """A second set for the verdict."""

    heldout: Annotated[
        Inputs | None,
        _data("Samples that only the verdict uses. Default: every fourth, or all but 24.", "DATA"),
    ]
    heldout_labels: Annotated[str | Path | None, _data("One label per held-out sample.", "FILE")]


class Labels(TypedDict, total=False):
    """Labels of the inputs."""

    labels: Annotated[
        str | Path | None, _data("One label per sample, for the metric.", "FILE", main=True)
    ]


class Reading(TypedDict, total=False):
    """How inputs are read."""

    preprocess: Annotated[
        str | None,
        _data(
            "Python function that turns an image's path into model inputs.",
            "FILE:FUNCTION",
            main=True,
        ),
    ]
    plugin_outputs: Annotated[
        str | None,
        _data(
            "What operators compute that ONNX Runtime lacks: arrays by the name of their output, "
            "or a function of a sample that returns them. Default: what follows is not judged.",
            "FILE.npz|FILE.py:FUNCTION",
        ),
    ]


class Data(Reading, total=False):
    """How inputs are read, and whether random ones count."""

    allow_random: Annotated[bool, _allowed("Accept a verdict on random inputs.", flag="random")]


class TaskMetric(TypedDict, total=False):
    """The metric of the task."""

    metric: Annotated[
        str | None,
        _acceptance(
            "Judge by a task metric: a built-in one such as top1 or detection-f1, or "
            "file.py:function. Default auto: what the outputs are decides, and 1 % of the largest "
            "value where that is unknown.",
            "M",
            main=True,
        ),
    ]


class Thresholds(TypedDict, total=False):
    """How large errors may be."""

    max_abs: Annotated[
        float | None,
        _demand("Largest absolute error allowed in an output.", domain=NOT_NEGATIVE),
    ]
    rel_max: Annotated[
        float | None,
        _threshold(
            "Largest error allowed, relative to the output's largest value. Default {}.",
            default=0.01,
            domain=NOT_NEGATIVE,
            main=True,
        ),
    ]
    snr_db: Annotated[
        float | None,
        _demand(
            "Smallest signal-to-noise ratio allowed, in dB.",
            domain=Domain("a finite number of dB", low=-inf),
        ),
    ]
    cosine: Annotated[
        float | None,
        _demand(
            "Smallest cosine similarity allowed.", domain=Domain("a number from −1 to 1", -1, 1)
        ),
    ]
    agreement: Annotated[
        float,
        _demand(
            "Smallest fraction of equal elements allowed in integer outputs.",
            default=0.99,
            domain=Domain("a fraction from 0 to 1", 0, 1),
        ),
    ]


class Acceptance(Thresholds, TaskMetric, total=False):
    """What is good enough."""

    strict: Annotated[
        bool,
        _acceptance("Hold every output to 1 % of its largest value, whatever it is.", main=True),
    ]

    failing: Annotated[
        str | float | None,
        _acceptance(
            "Largest share of inputs that may fail, such as 1%: its upper bound is judged (95 %, "
            "exact binomial) instead of the worst sample. 299 samples without a failure show 1 %, "
            "so three of four inputs are held out.",
            "SHARE",
        ),
    ]

    metric_drop: Annotated[
        float,
        _threshold(
            "How far the metric may fall. Default: 0.01 for rates such as top1 and detection-f1, "
            "0.1 for epe and psnr, 60 for psnr without labels (down to 40 dB); required for "
            "file.py:function.",
            domain=NOT_NEGATIVE,
        ),
    ]


class Unjudged(TypedDict, total=False):
    """What need not be judged."""

    allow_unjudged: Annotated[
        bool,
        _allowed(
            "Accept a verdict even if no sample tests some output, branch, loop body or metric.",
            flag="unjudged",
        ),
    ]


class Gate(TypedDict, total=False):
    """An earlier run whose results must be reached again."""

    baseline: Annotated[
        str | Path | None,
        _acceptance(
            "Fail if the result is worse than that of the earlier run RUN.", "RUN", main=True
        ),
    ]
    may_worsen: Annotated[
        str | None,
        _acceptance("How much worse each figure may be: 5% or 0.05. Default 5%.", "X"),
    ]


class Choice(TypedDict, total=False):
    """Which plan of a run to take."""

    worth: Annotated[
        float | None,
        _threshold(
            "Take the most exact plan up to X times the all-low model's cost.",
            domain=NOT_NEGATIVE,
            main=True,
        ),
    ]


class Low(TypedDict, total=False):
    """The low format."""

    to: Annotated[Literal["fp16", "bf16"], _plan("The low format.", default="fp16", main=True)]


class Lowest(TypedDict, total=False):
    """The lowest type."""

    to: Annotated[
        Literal["fp16", "bf16", "int8"],
        _plan(
            "The low format; int8: INT8 where that is enough, FP16 elsewhere.",
            default="fp16",
            main=True,
        ),
    ]


class Rungs(TypedDict, total=False):
    """Where a ladder ends."""

    to: Annotated[
        Literal["fp16", "bf16", "int8"],
        _plan("The last rung to try; int8 tries fp16 first.", default="int8", main=True),
    ]


class Plan(TypedDict, total=False):
    """What the mixed model may look like."""

    keep: Annotated[
        Sequence[str],
        _plan(
            "Keep nodes in FP32: name, regular expression, or the word outputs. Repeatable.",
            "N",
            main=True,
        ),
    ]
    keep_op: Annotated[
        Sequence[str],
        _plan("Keep every node of this type, decomposed forms included. Repeatable.", "TYPE"),
    ]
    keep_islands: Annotated[
        bool,
        _plan("Keep what the file itself has in FP32 among FP16 or BF16; else that is a start."),
    ]
    lower: Annotated[
        Sequence[str],
        _plan(
            "Always lower these nodes: name or regular expression. Only this lowers operators that "
            "neither ONNX nor ONNX Runtime has. Repeatable.",
            "N",
        ),
    ]
    only: Annotated[
        Literal["fp16"] | None,
        _plan("Keep nothing in FP32, for runtimes that ignore it: repairs alone."),
    ]
    start_from: Annotated[
        str | Path | None,
        _plan("Start the search from the plan of this mixed ONNX model or run folder.", "PATH"),
    ]
    no_repair: Annotated[bool, _plan("Leave the graph as it is: no repairs.")]
    allow_bf16: Annotated[bool, _allowed("Give kept nodes BF16 where it is enough.", flag="bf16")]
    allow_tf32: Annotated[bool, _allowed("Give kept nodes TF32 where it is enough.", flag="tf32")]
    io: Annotated[
        Literal["fp32", "fp16", "bf16"],
        _plan(
            "Type for FP32 inputs and outputs: fp32, or that of --to. Low ones keep theirs.",
            default="fp32",
        ),
    ]
    headroom: Annotated[
        float,
        _demand(
            "Treat a node as overflowing if X times its range in the data overflows.",
            default=2.0,
            domain=Domain("a finite number ≥ 1", 1),
        ),
    ]
    margin: Annotated[
        float,
        _demand(
            "Fraction of the tolerance that the search may use.",
            default=0.8,
            domain=Domain("a number above 0, at most 1", 1e-9, 1),
        ),
    ]
    budget: Annotated[
        float,
        _limit(
            "Inferences over all inputs that the search may make.",
            "N",
            1500.0,
            NOT_NEGATIVE,
            flag="inferences",
        ),
    ]
    time_budget: Annotated[
        float,
        _limit(
            "Seconds that the search may take.",
            "S",
            1800.0,
            Domain("a finite number of seconds ≥ 0"),
            flag="time",
        ),
    ]


class Arithmetic(TypedDict, total=False):
    """What is assumed of the hardware."""

    accumulate: Annotated[
        Literal["fp32", "fp16"],
        _running("Type in which FP16 ops accumulate sums.", default="fp32"),
    ]


class Running(TypedDict, total=False):
    """Where the model runs."""

    device: Annotated[Literal["cpu", "cuda"], _running("Where ONNX Runtime runs.", default="cpu")]
    ort_library: Annotated[
        Sequence[Path | str],
        _running("Library of custom operators for ONNX Runtime. Repeatable.", "PATH"),
    ]


class RunLimit(TypedDict, total=False):
    """How long one inference may take, and one evaluation by ONNX Runtime."""

    run_timeout: Annotated[
        float,
        _limit(
            "Seconds that one inference may take. Default {}; 40 for models with Loops.",
            "S",
            300.0,
            SECONDS,
        ),
    ]


_worker = partial(Option, panel="TensorRT")
_engine = partial(Option, panel="Engines")
_build = partial(_engine, group="--engine")
_seconds = partial(Option, panel="Running", metavar="S", domain=SECONDS, group="--budget")


class Limits(RunLimit, total=False):
    """How long each step may take."""

    build_timeout: Annotated[float, _seconds("Seconds that one build may take.", default=1800.0)]


class Worker(TypedDict, total=False):
    """Where TensorRT is."""

    trt_command: Annotated[
        str | None,
        _worker(
            "Command that starts a Python that can import tensorrt: /opt/trt/bin/python, "
            '"ssh orin python3", "docker run -i --gpus all IMAGE python3". Default: this Python.',
            "CMD",
        ),
    ]
    trt_worker: Annotated[str | Sequence[str] | None, _worker("Worker in halfwise.toml.", "NAME")]


class Devices(TypedDict, total=False):
    """Workers that one plan must be right on."""

    trt_worker: Annotated[
        Sequence[str],
        _worker("Worker in halfwise.toml. Repeat it to get one plan for several devices.", "NAME"),
    ]


class OneDevice(TypedDict, total=False):
    """One of the devices of a run."""

    trt_worker: Annotated[
        str | None, _worker("Worker whose engine to use, if the run has several.", "NAME")
    ]


TargetName = Literal["tensorrt", "rtx", "webgpu", "ort-cuda"]


class Targets(TypedDict, total=False):
    """Where the result has to hold."""

    target: Annotated[
        Sequence[TargetName] | TargetName,
        _engine(
            "Where the result has to hold. tensorrt: build engines and judge their outputs. rtx: "
            "TensorRT for RTX, likewise if a GPU is here, else only built. webgpu, ort-cuda: run "
            "in ONNX Runtime there. Repeatable.",
            "|".join(get_args(TargetName)),
            main=True,
        ),
    ]
    sm: Annotated[
        str, _engine("Compute capability that --target rtx builds for.", "SM86", default="SM86")
    ]


class TensorRt(TypedDict, total=False):
    """Whether engines are built."""

    target: Annotated[
        Literal["tensorrt"] | None, _engine("Build engines and judge their outputs.", main=True)
    ]


class Target(TypedDict, total=False):
    """How many engines are built, and which is taken."""

    builds: Annotated[
        int,
        _build(
            "How often to build the delivered plan, with weak typing.",
            "N",
            3,
            COUNT,
            flag="repeat",
        ),
    ]
    max_builds: Annotated[
        int,
        Option(
            "Builds that the search may use.",
            "N",
            6,
            COUNT,
            "Running",
            flag="builds",
            group="--budget",
        ),
    ]


class Building(TypedDict, total=False):
    """How engines are built. Options named as in trtexec mean the same."""

    typing: Annotated[
        Literal["weak", "strong"] | None,
        _engine("TensorRT's typing. Default: strong from TensorRT 10.0 on, else weak."),
    ]
    min_shapes: Annotated[
        Sequence[str],
        _build(
            "As in trtexec: name:1x3x224x224,… Once per profile. Default: from the inputs.",
            "SHAPES",
            flag="minShapes",
        ),
    ]
    opt_shapes: Annotated[Sequence[str], _build("As in trtexec.", "SHAPES", flag="optShapes")]
    max_shapes: Annotated[Sequence[str], _build("As in trtexec.", "SHAPES", flag="maxShapes")]
    workspace: Annotated[
        str | int | None, _build("Workspace limit: 4G, 512M; a bare number is MiB.", "SIZE")
    ]
    optimization_level: Annotated[
        int | None,
        _build(
            "Builder optimization level, 0 to 5.",
            "N",
            domain=Domain("a number from 0 to 5", 0, 5),
        ),
    ]
    tactic_sources: Annotated[
        str | Sequence[str] | None, _build("Tactic sources, separated by commas.", "NAMES")
    ]
    plugin: Annotated[Sequence[str], _build("Plugin library, by its path on the worker.", "PATH")]
    tf32: Annotated[bool, _build("Let kept nodes use TF32, which has 11 significant bits.")]
