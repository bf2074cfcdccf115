"""Where an engine is wrong although the model is right, and how that was shown."""

from typing import Literal

from halfwise.records.record import NodeName, Record

SymptomKind = Literal["outputs", "build", "run"]
"""How an engine is wrong: its outputs are, it cannot be built, or it cannot be run."""


class EngineDiagnosis(Record):
    """Where an engine is wrong although its computation is right elsewhere.

    Attributes:
        symptom: How it is wrong.
        sample: The sample that was examined.
        limit_db: SNR below which a tensor is wrong, unless rounding explains it.
        regions: The nodes of each region that is wrong alone on its true inputs, in graph order.
        snr_db: SNR of the engine of each region alone: 20 log10 of RMS / RMS error, -inf if not
            finite; empty without engines.
        everywhere: Whether every part that was built fails as the model does: then no node is
            blamed, as the cause may be around the engines.
        explained: Whether the engine of the rest is right with the regions' true outputs fed in;
            None if unknown.
        rest_db: Smallest SNR of its outputs; None without an engine.
        build_seconds: Time limit of each build but the first; None for none.
        late: Number of builds that took longer, so nothing is known about their content.
        interrupted: Whether Ctrl-C ended the search.
        builds: Number of builds used, including the engine itself.
        most_builds: Largest number of builds allowed.
    """

    symptom: SymptomKind
    sample: str
    limit_db: float
    regions: tuple[tuple[NodeName, ...], ...] = ()
    snr_db: tuple[float, ...] = ()
    everywhere: bool = False
    explained: bool | None = None
    rest_db: float | None = None
    build_seconds: float | None = None
    late: int = 0
    interrupted: bool = False
    builds: int = 1
    most_builds: int = 1
