"""What the framework computes that a model was exported from."""

from collections.abc import Sequence
from pathlib import Path

from halfwise.case import Case
from halfwise.errors import UsageError
from halfwise.inputs import load_function
from halfwise.metrics import Outputs
from halfwise.tools.compare.command import recorded_tensors
from halfwise.tools.pytorch import Module, demand_torch


def expected_tensors(case: Case, source: str | Path, runner: str | None) -> Sequence[Outputs]:
    """Return what the framework gives for each sample of a case, by the model's names of tensors.

    Args:
        case: Model and samples.
        source: Tensors on record, see `recorded_tensors`; or `file.py:factory` that returns a
            torch.nn.Module (or it and example inputs). The file is run, as the user asked, and the
            module in FP32 and eval mode. Its inputs and outputs go by name where the names are the
            model's, else in order.
        runner: Whose tensors, where those of several are on record.

    Raises:
        BackendMissing: PyTorch is not installed.
        UsageError, CaseError: the file cannot be used, or its module does not fit the model.
    """
    text = str(source)
    if ".py:" not in text and not text.endswith(".py"):
        return recorded_tensors(case, Path(source), runner)[0]
    if runner is not None:
        raise UsageError(
            f"--runner {runner} is given, and {text} names no runners.", "Leave --runner out."
        )
    demand_torch()
    module = Module(load_function(text)(), text)
    inputs, outputs = (
        [str(v.name) for v in values]
        for values in (case.network.graph.inputs, case.network.graph.outputs)
    )
    return [
        module.outputs(module.bound({name: sample[name] for name in inputs}), outputs)
        for sample in case.calibration
    ]
