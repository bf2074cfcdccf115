"""Where an engine is wrong although the model is right, how that was shown, and what helps."""

from math import inf
from typing import Literal

from halfwise.records.record import NodeName, Record, TensorName

SymptomKind = Literal["outputs", "build", "run"]
"""How an engine is wrong: its outputs are, it cannot be built, it cannot be run."""
CureKind = Literal["written-out", "level", "tactics", "marks", "anew"]
"""How an engine is built otherwise: GRU and LSTM as their steps; another optimization level; other
tactic sources; the tensors inside what is wrong as outputs; all kernels timed anew."""


MarksEffect = Literal["shown", "cured", "hidden", "refused", "late"]
"""What an engine does whose float tensors are all outputs: some node makes something wrong of what
it is given; the outputs are right; they are wrong, and no node makes anything wrong; there is no
such engine that runs; building it took too long."""


class EngineFault(Record):
    """Nodes that are wrong in an engine, on the true values of what they read.

    Attributes:
        operators: Their operator types, in graph order.
        places: The nodes of each place where there is the fault, in graph order.
        unmarked: The only place without its last nodes, where these only read: the others are wrong
            where another node reads what they give, and right where that is an output. Empty where
            that was not shown.
        alone: Whether an engine of the first place alone is wrong; None where that was not told.
        snr_db: What that gives there, or beside others in one engine: 20 log10 of RMS over RMS
            error, -inf where it is not finite; None where there is no engine.
    """

    operators: tuple[str, ...]
    places: tuple[tuple[NodeName, ...], ...]
    unmarked: tuple[tuple[NodeName, ...], ...] = ()
    alone: bool | None = None
    snr_db: float | None = None

    @property
    def named(self) -> tuple[tuple[NodeName, ...], ...]:
        """The nodes of each place that are to blame."""
        return self.unmarked or self.places


class Cure(Record):
    """A build of the same model that may be right.

    Attributes:
        kind: What was done.
        nodes: Nodes that were written out.
        level: Builder optimization level; None for that of the engine that is wrong.
        tactic_sources: Names of `TacticSource`, likewise.
        marks: Tensors that are outputs too.
        status: How the build ended, as in `BuildOutcome`.
        right: Whether the engine is; None where there is none that runs.
        snr_db: The smallest SNR of an output; -inf where one is not finite, None as for `right`.
        median_ms: Median time of a run; None of an engine that is not right.
        message: Why there is no engine; empty where there is one.
    """

    kind: CureKind
    nodes: tuple[NodeName, ...] = ()
    level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    marks: tuple[TensorName, ...] = ()
    status: str = "failed"
    right: bool | None = None
    snr_db: float | None = None
    median_ms: float | None = None
    message: str = ""


class EngineDiagnosis(Record):
    """Where an engine is wrong although what it computes is right without it, and what helps.

    Attributes:
        symptom: How it is wrong.
        sample: The sample that was looked at.
        searched: Nodes that compute something from values.
        marks: What the engine does with all float tensors as outputs; None where that was not told.
        suspects: Nodes that made something wrong there of what they were given, in graph order.
        limit_db: The SNR below which what a node gives is wrong, if roundings do not explain it.
        faults: What was found, each with other operators.
        alike: Places that look like one of the faults and were not asked whether they are wrong.
        everywhere: Whether every part that was asked ends as the model does: then no node is
            blamed, for it may be what is around the engines.
        explained: Whether the engine of the model is right once the true outputs of all faults and
            of what is alike are fed in; None where that was not told.
        fed_db: The smallest SNR of what it gives then; None where there is no engine.
        build_seconds: What each of these builds but the first might take; None for no such limit.
        late: How many took longer, so that nothing is known of what they held.
        interrupted: Whether Ctrl-C ended the search.
        builds: Builds that were used to find that, the engine itself included.
        most_builds: Builds that might be used in all, cures included.
        cures: Other builds that were tried.
        delivered: The engine of the fastest cure that is right, relative to the run folder.
        delivered_model: The model that it was built from, where that is another one.
        reproducer: Folder of the first place of the first fault, likewise.
    """

    symptom: SymptomKind
    sample: str
    searched: int
    limit_db: float
    marks: MarksEffect | None = None
    suspects: tuple[NodeName, ...] = ()
    faults: tuple[EngineFault, ...] = ()
    alike: tuple[tuple[NodeName, ...], ...] = ()
    everywhere: bool = False
    explained: bool | None = None
    fed_db: float | None = None
    build_seconds: float | None = None
    late: int = 0
    interrupted: bool = False
    builds: int = 1
    most_builds: int = 1
    cures: tuple[Cure, ...] = ()
    delivered: str | None = None
    delivered_model: str | None = None
    reproducer: str | None = None

    @property
    def verdict(self) -> Literal["kernel", "unknown"]:
        """What the fault is: of a "kernel" where nodes were wrong on their true inputs."""
        return "kernel" if self.faults else "unknown"

    @property
    def best(self) -> Cure | None:
        """The fastest cure that is right."""
        right = [cure for cure in self.cures if cure.right]
        return min(right, key=lambda cure: cure.median_ms or inf, default=None)
