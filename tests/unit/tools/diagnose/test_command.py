import shlex
from typing import Any

import numpy as np
import onnx
import pytest

from halfwise import api
from halfwise.errors import CaseError, UsageError
from halfwise.records import Rung, RungName, replace
from halfwise.reporting.diagnosis import diagnosed
from halfwise.reporting.parts import Lines
from halfwise.reporting.remarks import reasons
from halfwise.tools.diagnose.command import LADDER, climb
from halfwise.tools.diagnose.subject import skipped
from halfwise.wording import capital, stopped
from tests import models
from tests.end_to_end.test_unjudged import choice
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch
from tests.unit.tools.compare.copies import DATA, network, proto, side


@pytest.fixture
def files(tmp_path):
    onnx.save(proto(), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=DATA)
    outputs = list(side(network(b=1.2).model).get(["y_out"]))
    np.savez(tmp_path / "wrong.npz", y_out=np.concatenate([o["y_out"] for o in outputs]))
    return tmp_path


def diagnose(files, **options):
    return api.diagnose(files / "m.onnx", files / "x.npz", **options)


def answers(result):
    return [rung.passed for rung in result.run.diagnosis]


def test_nothing_wrong_without_a_gpu(files):
    result = diagnose(files, out=files / "run")
    assert answers(result) == [True, None, True, None, True, True, None]
    assert result.run.verdict.passed
    assert result.run.verdict.level == "emulated"
    assert result.run.kind == "diagnose"
    assert api.report(files / "run") == result.run


def test_an_export_that_is_wrong_ends_it(files):
    result = diagnose(files, expected=files / "wrong.npz")
    assert answers(result) == [True, False]
    assert result.run.diagnosis[-1].cause.endswith("Where they diverge is unknown.")
    assert reasons(result.run.verdict.failures) == (result.run.diagnosis[-1].cause,)
    assert result.run.next_step == result.run.diagnosis[-1].advice


def test_another_pipeline(files):
    np.savez(files / "b.npz", x=(DATA * 2).astype(np.float32))
    assert answers(diagnose(files, inputs_b=files / "b.npz")) == [False]
    np.savez(files / "few.npz", x=DATA[:2])
    with pytest.raises(CaseError, match="has 2 samples"):
        diagnose(files, inputs_b=files / "few.npz")


def test_random_inputs_are_not_real(files):
    result = api.diagnose(files / "m.onnx", "random")
    assert answers(result) == [False]
    assert api.diagnose(files / "m.onnx", "random", allow_random=True).run.verdict.passed


def test_a_precision_problem():
    ill = models.layer_norm()
    result = api.diagnose(ill.proto, ill.inputs)
    assert answers(result) == [True, None, True, None, True, False]
    assert "square" in result.run.diagnosis[-1].nodes


def ended(outputs, **options):
    """Diagnose a model of which `outputs` names what a sketch gives."""
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    result = api.diagnose(sketch.proto(*outputs(sketch, x)), {"x": DATA}, **options)
    return result, diagnosed(result.run)


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [
        (lambda s, x: [s.op("Slice", x, [0], [0], name="none")], "empty"),
        (lambda s, x: [s.op("Tanh", x), s.op("Mul", x, 0.0, name="zeros")], "zeros"),
    ],
)
def test_what_no_sample_tests_is_not_judged(outputs, kind):
    result, report = ended(outputs)
    assert False not in answers(result)
    verdict = result.run.verdict
    assert (verdict.passed, verdict.judged) == (False, False)
    assert [found.kind for found in verdict.unjudged] == [kind]
    assert report.title.startswith("NOT JUDGED: ")
    shown = {part.title: part.lines for part in report.parts if isinstance(part, Lines)}
    why = tuple(stopped(capital(each)) for each in reasons(verdict.failures))
    assert shown["Why it is not judged"] == why
    assert "--allow unjudged" in shown["What to do"][0]
    allowed, report = ended(outputs, allow_unjudged=True)
    assert allowed.run.verdict.passed
    assert report.title.startswith("Nothing wrong")


@pytest.mark.parametrize("op", ["Log", "Div"])
def test_outputs_of_fp32_that_are_not_finite_fail_the_health(op):
    undefined = {"Log": lambda s, x: [s.op("Log", x)], "Div": lambda s, x: [s.op("Div", x, 0.0)]}
    result, report = ended(undefined[op])
    assert answers(result) == [True, None, False]
    assert not result.run.verdict.passed
    assert report.title.startswith("FP32 itself gives NaN or infinite values")


def test_a_body_that_never_runs_is_not_judged():
    ill = choice([True] * 8)
    result = api.diagnose(ill.proto, ill.inputs)
    assert False not in answers(result)
    (found,) = result.run.verdict.unjudged
    assert (found.kind, found.body) == ("never-ran", "else_branch")
    assert not result.run.verdict.passed


def test_a_kernel_that_is_wrong(files, fake_worker):
    command = shlex.join(fake_worker("10.0.1", broken={"b": 1.3}))
    options = {"target": "tensorrt", "trt_command": command}
    result = diagnose(files, out=files / "run", **options)
    assert answers(result) == [True, None, True, False]
    assert result.run.diagnosis[-1].nodes == ("b",)
    assert result.run.verdict.level == "engine"


def test_what_cannot_be_used_is_an_error(files):
    with pytest.raises(CaseError, match="no file"):
        api.diagnose(files / "nowhere.onnx", files / "x.npz")
    with pytest.raises(CaseError, match=r"nowhere\.npz"):
        api.diagnose(files / "m.onnx", files / "nowhere.npz", out=files / "run")
    np.savez(files / "short.npz", x=DATA[:, :, :7])
    with pytest.raises(CaseError, match="expected"):
        api.diagnose(files / "m.onnx", files / "short.npz", out=files / "run")
    assert not (files / "run").exists()
    with pytest.raises(CaseError, match=r"no file .*nowhere\.npz"):
        diagnose(files, expected=files / "nowhere.npz")
    with pytest.raises(UsageError, match="exists"):
        diagnose(files, out=files)
    with pytest.raises(UsageError, match="not apply without --target"):
        diagnose(files, trt_worker="x")


def fixed(number, name, passed):
    return lambda _: Rung(rung=number, name=name, passed=passed, how="measured", cause="")


def test_the_first_that_fails_ends_it(subject):
    ladder: list[tuple[RungName, Any]] = [
        ("harness", fixed(1, "harness", True)),
        ("export", lambda _: skipped(2, "export", "nobody knows")),
        ("model", fixed(3, "model", False)),
        ("fp32", fixed(4, "fp32", True)),
    ]
    assert [rung.passed for rung in climb(subject(), ladder)] == [True, None, False]


def predicted(**changed):
    rung = Rung(
        rung=5,
        name="tf32",
        passed=False,
        how="emulated",
        cause="Off by 0.3.",
        nodes=tuple(names("a")),
    )
    return lambda _: replace(rung, **changed)


def test_a_predicted_fault_of_tf32_does_not_end_it(subject):
    """Without an engine it is suspected only, where something below is found to be wrong."""
    after: Any = ("kernels", fixed(7, "kernels", True))
    wrong, right = fixed(6, "precision", False), fixed(6, "precision", True)
    found = climb(subject(), [("tf32", predicted()), ("precision", wrong), after])
    assert [rung.passed for rung in found] == [None, False]
    assert found[0].cause == "Off by 0.3."
    found = climb(subject(), [("tf32", predicted()), ("precision", right), after])
    assert [rung.passed for rung in found] == [False, True, True]
    measured = climb(subject(), [("tf32", predicted(how="measured")), after])
    assert [rung.passed for rung in measured] == [False]


def test_a_healthy_model_passes_every_rung(subject):
    rungs = climb(subject())
    assert [rung.name for rung in rungs] == [name for name, _ in LADDER]
    assert [rung.rung for rung in rungs] == list(range(1, 8))
    assert [rung.passed for rung in rungs] == [True, None, True, None, True, True, None]
