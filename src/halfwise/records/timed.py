"""Speed of engines, alone and compared, when they were proven, and what that spared."""

from typing import Literal

from halfwise.records.record import Record, TensorName

SparedKind = Literal["slower", "interrupted", "no-tf32"]
"""Why engines were not built. "slower": with nothing kept, the low format is slower than a proven
FP32 or TF32 engine; "interrupted": Ctrl-C after an engine was proven; "no-tf32": the GPU has no
TF32."""


class Latency(Record):
    """Speed of an engine by CUDA events, after warm-up.

    Attributes:
        shapes: Shapes of the inputs.
        iterations: Number of measured runs.
        median_ms: Median time of one run on the GPU, with inputs and outputs already there.
        p99_ms: 99th percentile.
        transfer_median_ms: Median including copies from and to pinned host memory.
        transfer_p99_ms: 99th percentile including copies.
        per_second: Runs per second, back to back, without transfers.
        device_bytes: Device memory of engine and execution context.
        medians: Medians in ms of rounds in which it took turns with other engines; empty if timed
            alone. Their spread is the noise of its time.
    """

    shapes: dict[TensorName, tuple[int, ...]]
    iterations: int
    median_ms: float
    p99_ms: float
    transfer_median_ms: float
    transfer_p99_ms: float
    per_second: float
    device_bytes: int
    medians: tuple[float, ...] = ()


class TimeRatio(Record):
    """Time of one engine relative to another, from rounds in which they took turns.

    Attributes:
        low: Lower end of the interval that holds the median ratio (see `fixing/engines/race.py`).
        high: Upper end.
        rounds: Number of rounds.
    """

    low: float
    high: float
    rounds: int


class ProvenEngine(Record):
    """An engine that was judged on held-out data and reported during the run.

    Attributes:
        build: Number of its build.
        seconds: Wall time since the start of the command.
        median_ms: Its latency, timed alone; None if it could not be timed.
        path: Where it was available until the end of the run; None if it was not.
    """

    build: int
    seconds: float
    median_ms: float | None = None
    path: str | None = None


class Spared(Record):
    """What was not built, and why.

    Attributes:
        kind: Why.
        build: "slower": number of the build with nothing kept; None otherwise.
        median_ms: Its latency.
        full: Number of the build of the FP32 or TF32 engine.
        full_ms: Its latency.
        beside: Number of the build of a plan without repairs, which was made nevertheless; None for
            none.
    """

    kind: SparedKind
    build: int | None = None
    median_ms: float | None = None
    full: int | None = None
    full_ms: float | None = None
    beside: int | None = None
