"""What `halfwise export-torch` wrote, and whether it computes what the module does."""

from halfwise.records.record import Record


class ParityCheck(Record):
    """Module and export on the same inputs.

    Attributes:
        sizes: Sizes of the dynamic axes by symbol.
        error: Largest error of an output over its largest magnitude; infinite where the export
            does not run or gives other shapes.
        problem: Why it does not run; empty where it does.
    """

    sizes: dict[str, int]
    error: float
    problem: str = ""


class Exported(Record):
    """An export.

    Attributes:
        module: Where the module came from.
        model: The file.
        exporter: "dynamo" or "torchscript".
        opset: Version of its default operator set.
        nodes: Number of nodes.
        inputs: Shapes of the inputs, such as "x batch×3×224×224".
        outputs: Names of the outputs.
        tolerance: The largest error that passes.
        checks: Each dynamic axis at two sizes or more, the others as in the example.
        passed: Whether no check is above the tolerance.
        traced: Where tracing took a value of the inputs for a constant: on other inputs the module
            may do something else, which equal sizes do not show.
    """

    module: str
    model: str
    exporter: str
    opset: int
    nodes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tolerance: float
    checks: tuple[ParityCheck, ...]
    passed: bool
    traced: tuple[str, ...] = ()
