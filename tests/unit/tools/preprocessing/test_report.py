from typing import Any

from halfwise.records import (
    InputComparison,
    InputDifference,
    InputTrials,
    OutputError,
    PreprocessingReport,
    Side,
    TriedInputs,
)
from halfwise.tools.preprocessing.report import change_cause, change_signs, compared, no_change

SIDE = Side(minimum=0, maximum=1, mean=0.5, deviation=0.1)
CHANNELS = InputDifference(
    kind="channels",
    severity="error",
    sentence="B has the channels in reverse order.",
    a="0, 1, 2",
    b="2, 1, 0",
    evidence="measured",
)


def comparison(*differences, **changed):
    values = {
        "name": "x",
        "name_b": "x",
        "samples": 2,
        "shape_a": (1, 3, 9, 9),
        "shape_b": (1, 3, 9, 9),
        "dtype_a": "float32",
        "dtype_b": "float32",
        "differences": differences,
        "largest": 1.0,
        "residual_max": 0.0,
        "residual_rms": 0.0,
        "level": 0.004,
        "exact": True,
        "order": (0, 1),
    }
    return InputComparison.model_validate(values | changed)


def report(*inputs, **changed):
    return PreprocessingReport.model_validate(
        {"a": "a.npz", "b": "b.npz", "inputs": inputs} | changed
    )


def shown_of(report) -> Any:
    return compared(report)


def error(largest):
    return OutputError(
        max_abs=largest,
        rel_max=0.5,
        mean_abs=0.1,
        median_abs=0.1,
        snr_db=3.0,
        cosine=0.5,
        agreement=None,
        nonfinite=0,
        reference=SIDE,
        candidate=SIDE,
        worst_sample="x[0]",
        passed=False,
    )


def test_nothing_differs():
    shown = shown_of(report(comparison()))
    assert shown.title == "Both pipelines give the same inputs"
    assert shown.passed
    assert shown.parts[0].title == "Input x: 2 samples of 1×3×9×9 float32"
    assert shown.parts[0].lines == ("No difference: nothing between the values.",)


def test_differences_with_evidence_code_and_what_is_left():
    shown = shown_of(report(comparison(CHANNELS, code="import numpy\nx = 1\n")))
    assert shown.title == "1 difference: channels"
    assert shown.passed is False
    assert shown.parts[0].lines[:3] == (
        "error: B has the channels in reverse order.",
        "  → A: 0, 1, 2; B: 2, 1, 0",
        "  → measured",
    )
    nothing = "After the code below, nothing is left: this explains all of it."
    assert shown.parts[0].lines[-1] == nothing
    assert shown.parts[1].lines == ("import numpy", "x = 1")
    assert shown.parts[1].whole


def test_what_is_only_stored_differently():
    axis = CHANNELS.model_copy(update={"kind": "batch-axis", "severity": "info"})
    shown = shown_of(report(comparison(axis, shape_b=(3, 9, 9), name_b="y")))
    assert shown.title == "Both pipelines give the same inputs, stored differently: batch-axis"
    assert shown.parts[0].title == (
        "Input x (in B y): 2 samples of 1×3×9×9 float32 and 3×9×9 float32"
    )


def test_pipelines_and_outputs_and_notes():
    each = comparison(CHANNELS, pipeline_a="bilinear", pipeline_b="bicubic", exact=False)
    shown = shown_of(
        report(each, outputs={"y": error(2.0)}, outputs_mapped={"y": error(0.1)}, notes=("a note",))
    )
    assert "A: bilinear" in shown.parts[0].lines
    assert shown.parts[1].rows == (("y", "2", "0.5", "3", "0.5000", "0.1"),)
    assert shown.parts[2].lines == ("a note",)


def test_names_cannot_repaint_the_terminal():
    shown = shown_of(report(comparison(name="\x1b[2Jx", name_b="\x1b[2Jx"), a="\x1b"))
    assert "\x1b" not in shown.parts[0].title + shown.about


def trials(**changed):
    values = {
        "planned": 90,
        "tried": 3,
        "kinds": ("channels", "scale"),
        "limit": 1e-3,
        "before": 0.2,
        "best": TriedInputs(differences=(CHANNELS,), error=2e-7),
        "matches": True,
        "shown_by": 4,
        "numbers": 12,
    }
    return InputTrials.model_validate(values | changed)


def test_a_change_that_matches():
    assert change_cause(trials(), 4) == (
        "The framework had other inputs. With A from --inputs and B from the framework: B has the "
        "channels in reverse order. With A changed like this, ONNX Runtime reproduces the "
        "framework's outputs on 4 samples: the error is 2e−7, and 0.2 without the change."
    )
    first, second = change_signs(trials(), 4)
    assert (first.severity, first.text) == (
        "error", "channels: A 0, 1, 2, B 2, 1, 0; measured.",
    )  # fmt: skip
    assert (
        "right on 4 of 4 samples, at least 12 independent numbers. Errors are relative RMS."
        in second.text
    )
    assert change_signs(trials(also=2), 4)[-1].severity == "warning"


def test_no_change_that_matches():
    far = TriedInputs(differences=(CHANNELS,), error=0.1)
    text = no_change(trials(matches=False, tried=90, best=far))
    assert text.startswith("90 input changes (channels, scale) were tried; with none")
    assert (
        "an error of 0.1 on one sample (0.2 without the change, 0.001 allowed): B has the channels"
        in text
    )
    assert "time ran out before 87 more" in no_change(trials(matches=False, best=None))
    none = no_change(trials(matches=False, best=None, planned=90, tried=0, kinds=()))
    assert none.startswith("Time ran out before any of the 90 input changes ")
    assert none.endswith("may have made could be tried.")
    few = no_change(trials(matches=False, numbers=1))
    assert "perhaps by chance: only 1 independent number became right" in few
