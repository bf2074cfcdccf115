"""How fast engines are, alone and beside one another."""

from halfwise.records.record import Record, TensorName


class Latency(Record):
    """How fast an engine is, by CUDA events, after warm-up.

    Attributes:
        shapes: Shapes of the inputs.
        iterations: Number of measured runs.
        median_ms: Median time of one run on the GPU, inputs and outputs there already.
        p99_ms: 99th percentile.
        transfer_median_ms: The same with copies from and to pinned host memory.
        transfer_p99_ms: Its 99th percentile.
        per_second: Runs per second, one after another, without transfers.
        device_bytes: Device memory of engine and execution context.
        medians: Medians of rounds in which it took turns with other engines, ms; empty where it was
            timed alone. How far they differ is the noise of its time.
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
    """The time of one engine over that of another, from rounds in which they took turns.

    Attributes:
        low: Lower end of the interval that holds the median ratio, as `fixing/engines/race.py` has
            it.
        high: Upper end.
        rounds: Number of rounds.
    """

    low: float
    high: float
    rounds: int
