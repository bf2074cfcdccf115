"""A whole run, as stored in `run.json`, and its comparison with an earlier one, its baseline."""

from typing import Literal

from halfwise.records.built import Profile
from halfwise.records.curve import Curve
from halfwise.records.diagnosis import Rung
from halfwise.records.engine import Engines
from halfwise.records.followed import Followed
from halfwise.records.inspection import GivenEngine
from halfwise.records.judged import Criterion, Verdict
from halfwise.records.outcomes import LadderRung
from halfwise.records.planned import KeptNode, Plan, Search, Worth
from halfwise.records.quantisation import QuantisationLoss
from halfwise.records.record import SCHEMA_VERSION, NodeName, Note, Record
from halfwise.records.repair import Remade
from halfwise.records.step import Step
from halfwise.records.tensors import Growth, Guard

FigureKind = Literal[
    "rel-max", "mean-abs", "unequal", "non-finite", "metric", "cost", "measured", "time"
]
"""A figure that can get worse; smaller is better for all of them.

"rel-max", "mean-abs": as in `OutputError`; "unequal": the share of elements that differ from the
reference's, in an output that is not floating point; "metric": how far the candidate's value
is below the reference's; "cost", "measured": as in `Worth`; "time": median milliseconds of one run
of an engine.
"""


class Change(Record):
    """A figure of the baseline, and its current value.

    Attributes:
        kind: What it is.
        of: The output, the metric, or the GPU and version of TensorRT; "" for costs.
        before: Value in the baseline.
        now: Value in the run; None if it has none.
        limit: Largest value that passes.
        passed: Whether it is within the limit. Without the figure, False for what is judged
            (outputs and metrics) and True for times and measured costs, which were not measured,
            or elsewhere. True for a predicted cost if the baseline is of another command, and for
            whatever the user accepts as missing; then `limit` is inf.
    """

    kind: FigureKind
    of: str = ""
    before: float
    now: float | None
    limit: float
    passed: bool


class Baseline(Record):
    """An earlier run, and all its figures that can get worse.

    Attributes:
        run: Its folder, as given.
        date: Its date; UTC, ISO 8601.
        same_samples: Whether both runs judged the same samples, by their hash; False if only their
            names are the same.
        same_model: Whether both runs are of the same FP32 model, by its hash.
        changes: Its figures.
    """

    run: str
    date: str
    same_samples: bool
    same_model: bool = True
    changes: tuple[Change, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing got worse than allowed."""
        return all(change.passed for change in self.changes)


RunKind = Literal["fix", "verify", "diagnose"]


class Cost(Record):
    """Resources that the run used."""

    evaluations: int
    seconds: float
    stage_seconds: dict[str, float]
    peak_rss_bytes: int


class Sizes(Record):
    """Sizes of a run's models including weights, in bytes.

    Attributes:
        fp32: Size of the user's model.
        plan: Size of the model with the plan.
    """

    fp32: int
    plan: int


class Provenance(Record):
    """Everything needed to repeat the run.

    Attributes:
        versions: Package name to version, including halfwise and Python.
        platform: Operating system and processor.
        device: Execution provider that ran the model.
        model: Path of the model as given.
        candidate: Path of what `verify` judges, as given; "" of others.
        folder: The working directory that `model` is relative to; "" if it no
            longer existed.
        model_sha256: Hash of the model file and its external data.
        data: Source of the inputs, as given; None if they were in memory.
        inputs: Remarks on model and inputs, in words.
        notes: The same as facts.
        inputs_sha256: Hash of all samples.
        command: The command, if it is not the kind of its run: `ladder` and `choose` make runs of
            kind "fix".
        options: The options of the command.
        seed: Seed of every random choice.
        date: UTC, ISO 8601.
    """

    versions: dict[str, str]
    platform: str
    device: str
    model: str
    candidate: str = ""
    folder: str = ""
    model_sha256: str
    data: str | None = None
    inputs: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    inputs_sha256: str
    command: str = ""
    options: dict[str, str]
    seed: int
    date: str


class Run(Record):
    """Everything that one run found; the content of `run.json`.

    Attributes:
        schema_version: Version of this structure.
        kind: The command that made it.
        criterion: What is acceptable.
        accumulate: Format of running sums inside ops.
        io: Type of float graph inputs and outputs of the rewritten model. With "fp32", those that
            the file stores in the low format keep it.
        headroom: Factor on observed ranges below which overflow counts.
        baseline: Verdict on the model with everything low except what its file computes in FP32.
        all_int8: The same with INT8 wherever possible, besides what the plan keeps in FP32; None
            without INT8.
        without_int8: Nodes that could be INT8, if none is; empty if one is, or if it was not tried.
        guards: Suspected causes, most severe first.
        growth: Growth of the error through the model with only `followed.kept` in FP32. If there
            was nothing to follow, through the user's model with everything low, at nodes spread
            over it. None without a run folder, and if time ran out.
        followed: What that and trials show about the source of the error; None if guards and rules
            explain all kept nodes.
        plan: The plan.
        search: How the plan was found.
        verdict: The verdict on the rewritten model.
        original_names: Names in the user's file by halfwise's names, if they differ.
        warnings: Remarks on inputs and model.
        engines: What real engines showed; None if none was requested. Of several devices, the first
            named that was not lost.
        further: The other devices.
        diagnosis: Rungs of `diagnose`, up to the first that failed.
        given_engine: The user's own engine that was judged; None otherwise.
        profiles: The optimization profile that covers all samples; empty if no shape varies, and
            for `fix` with engines, which record their own.
        worth: What the plan, or the mixed candidate, is worth; None if unknown.
        remade: Result of repeating the repairs that a judged candidate names; None if it names
            none.
        quantisation: Effect of the pairs of a quantised candidate whose outputs are not acceptable;
            None for others.
        curve: Evaluated plans to choose from; None without a search.
        rungs: Result of each type, most exact first; empty if only one was requested.
        sizes: Sizes of the models; None without a plan.
        compared: What got better or worse since an earlier run; None if none was named.
        next_step: What to do next.
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
    next_step: tuple[Step, ...]
    cost: Cost
    provenance: Provenance

    @property
    def devices(self) -> tuple[Engines, ...]:
        """Results of the engines on each device; empty without engines."""
        return () if self.engines is None else (self.engines, *self.further)

    def on(self, name: str) -> "Run":
        """Return the run as if the named device had been the only one.

        Raises:
            KeyError: it has none of that name.
        """
        for engines in self.devices:
            if engines.worker.name == name:
                verdict = engines.verdict or self.verdict
                found = {"engines": engines, "further": (), "verdict": verdict}
                return self.model_copy(update=found)
        raise KeyError(name)
