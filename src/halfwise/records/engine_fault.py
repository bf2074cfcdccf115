"""Where an engine is wrong although the model is right, and how that was shown."""

from typing import Literal

from halfwise.records.record import NodeName, Record

SymptomKind = Literal["outputs", "build", "run"]
"""How an engine is wrong: its outputs are, it cannot be built, or it cannot be run."""

MarksEffect = Literal["shown", "cured", "hidden", "refused", "late"]
"""What an engine with all float tensors as outputs does. "shown": some node computes something
wrong from its inputs; "cured": the outputs are right; "hidden": they are wrong, but no node
computes anything wrong; "refused": no such engine runs; "late": building it took too long."""


class EngineFault(Record):
    """Nodes that an engine computes wrongly from correct inputs.

    Attributes:
        operators: Their operator types, in graph order.
        places: The nodes of each place with the fault, in graph order.
        unmarked: The only place, without its last nodes if these merely read: the others are wrong
            when another node reads what they write, and right when that is an output. Empty if this
            was not shown.
        alone: Whether an engine of the first place alone is wrong; None if unknown.
        snr_db: SNR of that engine, or beside others in one engine: 20 log10 of RMS / RMS error,
            -inf if not finite; None without an engine.
    """

    operators: tuple[str, ...]
    places: tuple[tuple[NodeName, ...], ...]
    unmarked: tuple[tuple[NodeName, ...], ...] = ()
    alone: bool | None = None
    snr_db: float | None = None

    @property
    def named(self) -> tuple[tuple[NodeName, ...], ...]:
        """The nodes at fault in each place."""
        return self.unmarked or self.places


class EngineDiagnosis(Record):
    """Where an engine is wrong although its computation is right elsewhere.

    Attributes:
        symptom: How it is wrong.
        sample: The sample that was examined.
        searched: Number of nodes that compute something from values.
        marks: What the engine does with all float tensors as outputs; None if unknown.
        suspects: Nodes that computed something wrong from their inputs there, in graph order.
        limit_db: SNR below which a node's output is wrong, unless rounding explains it.
        faults: The faults found, each with different operators.
        alike: Places similar to one of the faults that were not checked.
        everywhere: Whether every part that was checked fails as the model does: then no node is
            blamed, as the cause may be around the engines.
        explained: Whether the model's engine is right once the true outputs of all faults and
            similar places are fed in; None if unknown.
        fed_db: Smallest SNR of its outputs then; None without an engine.
        build_seconds: Time limit of each of these builds but the first; None for none.
        late: Number of builds that took longer, so nothing is known about their content.
        interrupted: Whether Ctrl-C ended the search.
        builds: Number of builds used, including the engine itself.
        most_builds: Largest number of builds allowed to find the place.
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

    @property
    def verdict(self) -> Literal["kernel", "unknown"]:
        """The kind of fault: "kernel" if nodes were wrong on correct inputs."""
        return "kernel" if self.faults else "unknown"
