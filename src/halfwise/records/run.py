"""A run: all of it, as `run.json` holds it."""

from typing import Literal

from halfwise.records.baseline import Baseline
from halfwise.records.built import Profile
from halfwise.records.curve import Curve
from halfwise.records.diagnosis import Rung
from halfwise.records.engine import Engines
from halfwise.records.inspection import GivenEngine
from halfwise.records.judged import Criterion, Verdict
from halfwise.records.ladder import LadderRung
from halfwise.records.planned import Followed, KeptNode, Plan, Search, Worth
from halfwise.records.quantisation import QuantisationLoss
from halfwise.records.record import SCHEMA_VERSION, NodeName, Note, Record
from halfwise.records.repair import Remade
from halfwise.records.tensors import Growth, Guard

RunKind = Literal["fix", "verify", "diagnose"]


class Cost(Record):
    """What the run took."""

    evaluations: int
    seconds: float
    stage_seconds: dict[str, float]
    peak_rss_bytes: int


class Sizes(Record):
    """Sizes of a run's models with their weights, in bytes.

    Attributes:
        fp32: Of the user's.
        plan: Of that with the plan.
    """

    fp32: int
    plan: int


class Provenance(Record):
    """What is needed to repeat the run.

    Attributes:
        versions: Package name to version, halfwise and Python included.
        platform: Operating system and processor.
        device: Execution provider that ran the model.
        model: Path of the model as given.
        folder: The working directory, which that path is relative to; "" in records before, and
            where it was gone.
        model_sha256: Hash of the model file and its external data.
        data: What was given as inputs; None where they were in memory, and in records before.
        inputs: What was understood of model and inputs, in words.
        notes: The same as facts; none in records before this field.
        inputs_sha256: Hash of all samples.
        options: The options of the command.
        seed: Seed of every random choice.
        date: UTC, ISO 8601.
    """

    versions: dict[str, str]
    platform: str
    device: str
    model: str
    folder: str = ""
    model_sha256: str
    data: str | None = None
    inputs: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    inputs_sha256: str
    options: dict[str, str]
    seed: int
    date: str


class Run(Record):
    """Everything one run found; the content of `run.json`.

    Attributes:
        schema_version: Version of this structure.
        kind: The command that made it.
        criterion: What was acceptable.
        accumulate: Format of running sums inside ops.
        io: Type of float graph inputs and outputs of the rewritten model; with "fp32", those that
            the file stores in the low format stay so.
        headroom: Factor on observed ranges within which overflow counts.
        baseline: Verdict on the model with everything low but what its file computes in FP32.
        all_int8: The same with INT8 wherever it could be, beside what the plan keeps in FP32; None
            without INT8, and in records before this field.
        without_int8: The nodes that could have INT8 where none of them has; empty where one has,
            and where it was not tried.
        guards: Suspicions, gravest first.
        growth: Error growth through the model with only the nodes `followed.kept` in FP32; where
            nothing had to be followed, through the user's model with everything low, at nodes that
            are spread over it. None without a run folder, and where time was up.
        followed: What that, and trials, show of where it comes from; None where guards and rules
            explain all kept nodes.
        plan: The plan.
        search: How it was found.
        verdict: The verdict on the rewritten model.
        original_names: Names in the user's file by halfwise's names, where they differ.
        warnings: Remarks on inputs and model.
        engines: What real engines showed; None where none was asked for. Of several devices, the
            one that was named first of those that were not lost.
        further: The other devices.
        diagnosis: The rungs of `diagnose`, up to the first that failed.
        given_engine: The user's own engine, which was judged; None where it was none.
        profiles: The optimization profile that holds all samples; none where no shape varies, and
            in runs of `fix` with engines, which tell their own.
        worth: What the plan, or the mixed candidate, is worth; None where it is not known.
        remade: What making the repairs again shows that a judged candidate names; None where it
            names none, and in records before this field.
        quantisation: What the pairs of a quantised candidate do, whose outputs are not acceptable;
            None of others, and in records before this field.
        curve: The plans that the search evaluated, to choose from; None without a search, and in
            records before this field.
        rungs: What each type came to, most exact first; none where one alone was asked for, and in
            records before this field.
        sizes: How large the models are; None without a plan, and in records before this field.
        compared: What got better or worse since an earlier run; None where none was named, and in
            records before this field.
        next_step: What to do now, one line each.
        cost: Time and memory.
        provenance: Versions and hashes.
    """

    schema_version: int = SCHEMA_VERSION
    kind: RunKind
    criterion: Criterion
    accumulate: Literal["fp32", "fp16"]
    io: Literal["fp32", "fp16", "bf16"]
    headroom: float
    baseline: Verdict | None
    all_int8: Verdict | None = None
    without_int8: tuple[KeptNode, ...] = ()
    guards: tuple[Guard, ...]
    growth: tuple[Growth, ...]
    followed: Followed | None = None
    plan: Plan | None
    search: Search | None
    verdict: Verdict
    original_names: dict[NodeName, str]
    warnings: tuple[str, ...]
    engines: Engines | None = None
    further: tuple[Engines, ...] = ()
    diagnosis: tuple[Rung, ...] = ()
    given_engine: GivenEngine | None = None
    profiles: tuple[Profile, ...] = ()
    worth: Worth | None = None
    remade: Remade | None = None
    quantisation: QuantisationLoss | None = None
    curve: Curve | None = None
    rungs: tuple[LadderRung, ...] = ()
    sizes: Sizes | None = None
    compared: Baseline | None = None
    next_step: tuple[str, ...]
    cost: Cost
    provenance: Provenance

    @property
    def devices(self) -> tuple[Engines, ...]:
        """What engines showed on each device; empty without engines."""
        return () if self.engines is None else (self.engines, *self.further)

    def on(self, name: str) -> "Run":
        """Return the run as if the device of that name had been the only one.

        Raises:
            KeyError: it has none of that name.
        """
        for engines in self.devices:
            if engines.worker.name == name:
                verdict = engines.verdict or self.verdict
                found = {"engines": engines, "further": (), "verdict": verdict}
                return self.model_copy(update=found)
        raise KeyError(name)
