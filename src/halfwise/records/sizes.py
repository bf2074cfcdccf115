"""At which sizes of its dynamic axes a model was judged."""

from typing import Literal

from halfwise.records.record import Record, TensorName


class JudgedBatch(Record):
    """How a candidate did on samples that were put together in batches.

    Attributes:
        size: Size along the batch axis.
        shapes: Shapes of the inputs that have a dynamic axis.
        samples: Identifiers of the samples in the batches, or of batches that were judged whole.
        whole: Whether the model itself does not give, row by row, what it gives for single samples.
            Whole batches are then compared with the reference on the same batch.
        passed: Whether it did as well as the verdict demands.
        rel_max: Largest error over largest reference value, by output name; inf for new non-finite
            values. Empty where it could not be run.
        reasons: Why it failed, a clause each.
    """

    size: int
    shapes: dict[TensorName, tuple[int, ...]]
    samples: tuple[str, ...]
    whole: bool
    passed: bool
    rel_max: dict[str, float]
    reasons: tuple[str, ...] = ()


NotBatched = Literal["sizes", "fails", "metric", "recorded"]


class DynamicAxis(Record):
    """An axis that is dynamic, and the sizes that the judged samples and batches have there.

    Attributes:
        inputs: The axis of each input that has it, counted from 0.
        symbol: Its name in the model; None where it has none.
        sizes: In ascending order; with one alone, other sizes were not judged.
        why: Why no batches were put together along it: "sizes" (inputs differ in size there),
            "fails" (the model itself does not run on one), "metric" (the model mixes the samples of
            a batch, and the metric reads single ones), "recorded" (there are only outputs on
            record); None where it is no batch axis, or they were.
        detail: What the model says where it fails; a clause.
    """

    inputs: dict[TensorName, int]
    symbol: str | None
    sizes: tuple[int, ...]
    why: NotBatched | None = None
    detail: str = ""
