"""A size of the export without which a model does not run."""

from halfwise.records.record import NodeName, Record, TensorName


class FrozenSize(Record):
    """An axis that the file declares dynamic and that has one size all the same.

    Attributes:
        axes: The axis of each input that has it.
        batch: Whether it is the batch axis.
        given: Its length in the samples: there the model fails.
        runs: The length at which it runs, on the same values repeated or cut. One less and one more
            fail too.
        nodes: Nodes with a constant that holds this length or a multiple of it, in graph order.
        shown: Whether the model runs on the samples with `given` in the place of `runs` in these
            constants; only tried for batches.
        failure: What ONNX Runtime said of the samples.
    """

    axes: dict[TensorName, int]
    batch: bool
    given: int
    runs: int
    nodes: tuple[NodeName, ...]
    shown: bool
    failure: str
