"""Results of `build`, `inspect` and `verify` for a run or for the user's own engine."""

from typing import Literal

from halfwise.records.built import BuildOutcome, EngineFile, Profile, ShapeRange, WorkerInfo
from halfwise.records.engine import PrecisionProof, ShapeVerdict
from halfwise.records.finding import LogFinding
from halfwise.records.judged import Verdict
from halfwise.records.outcomes import Latency
from halfwise.records.record import Record, TensorName
from halfwise.records.repair import Remade


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


class Repeated(Record):
    """A run's delivered plan, or its engine itself, on one worker.

    Attributes:
        name: Name of the worker.
        worker: The worker; None if it did not start.
        what: "rebuilt": the plan, built there; "delivered": the engine in the run folder.
        build: The build; None if nothing was built.
        verdict: On all samples, including the profiles' shapes; None if there is none.
        shapes: Verdicts at the profiles' shapes.
        latency: Its speed; None likewise.
        ratio: Its median time relative to that of the run's own engine; None if one is unknown.
        failure: Why there is no verdict; empty otherwise.
    """

    name: str
    worker: WorkerInfo | None
    what: Literal["rebuilt", "delivered"]
    build: BuildOutcome | None = None
    verdict: Verdict | None = None
    shapes: tuple[ShapeVerdict, ...] = ()
    latency: Latency | None = None
    ratio: float | None = None
    failure: str = ""


class Repetition(Record):
    """Result of `halfwise verify RUN --target tensorrt`.

    Attributes:
        run: The run folder.
        samples: Number of samples judged.
        rows: One per worker, and one more if the delivered engine could run too.
        notes: Remarks on the inputs.
        remade: Result of repeating the mixed model's repairs; None if it names none.
    """

    run: str
    samples: int
    rows: tuple[Repeated, ...]
    notes: tuple[str, ...] = ()
    remade: Remade | None = None

    @property
    def passed(self) -> bool:
        """Whether every row passed, and the repairs hold."""
        judged = all(row.verdict is not None and row.verdict.passed for row in self.rows)
        return judged and (self.remade is None or self.remade.holds)

    @property
    def usable(self) -> bool:
        """Whether any worker gave a verdict or at least attempted a build."""
        return any(row.verdict is not None or row.build is not None for row in self.rows)
