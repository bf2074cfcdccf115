"""Options for where TensorRT is and how engines are built."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from halfwise.declarations.option import COUNT, SECONDS, Domain, Option
from halfwise.declarations.plans import RunLimit

_worker = partial(Option, panel="TensorRT")
_engine = partial(Option, panel="Engines")
_build = partial(_engine, group="--engine")
_seconds = partial(Option, panel="Running", metavar="S", domain=SECONDS, group="--budget")


class Waiting(RunLimit, total=False):
    """How long an inference may take, and how long it may wait for the GPU."""

    wait_timeout: Annotated[
        float, _seconds("Seconds to wait for a GPU that another build uses.", default=3600.0)
    ]


class Limits(Waiting, total=False):
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
            main=True,
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


class Workers(TypedDict, total=False):
    """Where TensorRT is, in several places; all of halfwise.toml if none is named."""

    trt_command: Annotated[
        Sequence[str],
        _worker(
            'Command that starts a Python that can import tensorrt: "ssh orin python3". '
            "Repeatable. Default: this Python.",
            "CMD",
            main=True,
        ),
    ]
    trt_worker: Annotated[Sequence[str], _worker("Worker in halfwise.toml. Repeatable.", "NAME")]


class Target(TypedDict, total=False):
    """Whether engines are built, and at most how many."""

    target: Annotated[
        Literal["tensorrt"] | None, _engine("Build engines and judge their outputs.", main=True)
    ]
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
    prefer: Annotated[
        Literal["speed", "memory", "exact"],
        _build("What decides between equally fast engines.", default="speed"),
    ]
    resume: Annotated[bool, _engine("Continue a run that ended early; skip what crashed.")]


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
    timing_cache: Annotated[Path | str | None, _build("Timing cache to read and update.", "FILE")]
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
