"""What `build`, `inspect` and `verify` of a run or of the user's own engine found."""

from typing import Literal

from halfwise.records.built import BuildOutcome, EngineFile, Profile, ShapeRange, WorkerInfo
from halfwise.records.engine import PrecisionProof, ShapeVerdict
from halfwise.records.finding import LogFinding
from halfwise.records.judged import Verdict
from halfwise.records.record import Record, TensorName
from halfwise.records.repair import Remade
from halfwise.records.timed import Latency


class EngineTensor(Record):
    """An input or output of an engine.

    Attributes:
        name: Its name.
        is_input: Whether it is an input.
        dtype: NumPy's name of its type, or ml_dtypes'.
        shape: Its sizes; −1 where they are dynamic.
        shape_tensor: Whether its elements decide about shapes.
        limits: Of an input, in each profile; of values where it is a shape tensor.
    """

    name: TensorName
    is_input: bool
    dtype: str
    shape: tuple[int, ...]
    shape_tensor: bool
    limits: tuple[ShapeRange, ...]


class Inspection(Record):
    """What an engine shows of itself.

    Attributes:
        worker: Where it was looked at.
        engine: The file.
        tensors: Its inputs and outputs.
        profiles: Number of optimization profiles.
        layers: Number of layers after fusion.
        device_bytes: Device memory of an execution context.
        proof: What it computes in; None where it could not be inspected.
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
    """What `halfwise build` made.

    Attributes:
        model: Path of the model as given.
        build: The build; its engine is the file that was asked for.
        inspection: What the engine shows of itself.
        findings: What the builder's warnings and errors mean.
        unmatched: Constraints that reached no layer, one sentence per reason.
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
        build: How it was built, of a candidate that is a model; None for one that was given.
        proof: What that computes in; None likewise.
    """

    worker: WorkerInfo
    engine: EngineFile
    profiles: tuple[Profile, ...]
    shapes: tuple[ShapeVerdict, ...]
    latency: Latency
    build: BuildOutcome | None = None
    proof: PrecisionProof | None = None


class Repeated(Record):
    """The delivered plan of a run, or its engine itself, on one worker.

    Attributes:
        name: Name of the worker.
        worker: The worker; None where it did not come up.
        what: "rebuilt": the plan, built there; "delivered": the engine in the run folder.
        build: How it was built; None where nothing was.
        verdict: On all samples, the profiles' shapes included; None where there is none.
        shapes: Verdicts at the profiles' shapes.
        latency: Its speed; None likewise.
        ratio: Its median time over that of the run's own engine; None where one is not known.
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
    """What `halfwise verify RUN --target tensorrt` found.

    Attributes:
        run: The run folder.
        samples: Number of samples that were judged.
        rows: One per worker, and one more where the delivered engine could run too.
        notes: What was understood of the inputs.
        remade: What making the repairs of the mixed model again shows; None where it names none.
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
        """Whether any worker gave a verdict or at least tried to build."""
        return any(row.verdict is not None or row.build is not None for row in self.rows)
