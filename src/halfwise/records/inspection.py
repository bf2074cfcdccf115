"""Results of `build`, `inspect` and `verify` for the user's own engine."""

from halfwise.records.built import BuildOutcome, EngineFile, Profile, ShapeRange, WorkerInfo
from halfwise.records.engine import PrecisionProof, ShapeVerdict
from halfwise.records.finding import LogFinding
from halfwise.records.outcomes import Latency
from halfwise.records.record import Record, TensorName


class EngineTensor(Record):
    """An input or output of an engine.

    Attributes:
        name: Its name.
        is_input: Whether it is an input.
        dtype: Type, by its NumPy or ml_dtypes name.
        shape: Sizes; −1 if dynamic.
        shape_tensor: Whether its elements determine shapes.
        limits: For an input, per profile; limits of values if it is a shape tensor.
    """

    name: TensorName
    is_input: bool
    dtype: str
    shape: tuple[int, ...]
    shape_tensor: bool
    limits: tuple[ShapeRange, ...]


class Inspection(Record):
    """What an engine reveals about itself.

    Attributes:
        worker: Where it was inspected.
        engine: The file.
        tensors: Its inputs and outputs.
        profiles: Number of optimization profiles.
        layers: Number of layers after fusion.
        device_bytes: Device memory of an execution context.
        proof: Its precision; None if it could not be inspected.
        latency: Its speed; None likewise.
        notes: What it was inspected on, or why it was not.
    """

    worker: WorkerInfo
    engine: EngineFile
    tensors: tuple[EngineTensor, ...]
    profiles: int
    layers: int
    device_bytes: int
    proof: PrecisionProof | None
    latency: Latency | None
    notes: tuple[str, ...]


class EngineBuild(Record):
    """Result of `halfwise build`.

    Attributes:
        model: Path of the model as given.
        build: The build; its engine is the requested file.
        inspection: What the engine reveals about itself.
        findings: Meaning of the builder's warnings and errors.
        unmatched: Constraints that matched no layer, one sentence per reason.
    """

    model: str
    build: BuildOutcome
    inspection: Inspection
    findings: tuple[LogFinding, ...]
    unmatched: tuple[str, ...]


class GivenEngine(Record):
    """The user's own engine, judged.

    Attributes:
        worker: Where it ran.
        engine: The file.
        profiles: Its optimization profiles.
        shapes: Verdicts at their shapes.
        latency: Its speed.
        build: The build, for a candidate that is a model; None for a given engine.
        proof: Its precision; None likewise.
    """

    worker: WorkerInfo
    engine: EngineFile
    profiles: tuple[Profile, ...]
    shapes: tuple[ShapeVerdict, ...]
    latency: Latency
    build: BuildOutcome | None = None
    proof: PrecisionProof | None = None
