import numpy as np
import pytest

from halfwise.records import Criterion
from halfwise.reporting.diagnosis import diagnosed_screen
from halfwise.reporting.parts import brief
from halfwise.reporting.steps import steps_told
from halfwise.tools.diagnose.precision import tf32
from halfwise.wording import listed
from tests.fake_tensorrt.faults import Fault
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.reporting.diagnoses import diagnosis


def test_it_does_not_matter(subject):
    rung = tf32(subject())
    assert rung.passed
    assert rung.how == "emulated"
    assert rung.nodes == ()


def test_products_are_ranked_by_what_they_do_alone(subject):
    rung = tf32(subject(criterion=Criterion(rel_max=1e-6)))
    assert rung.passed is False
    assert set(rung.nodes) == {"a", "b", "y"}
    ranks = [s for s in rung.evidence if s.nodes]
    assert [s.nodes[0] for s in ranks] == list(rung.nodes)
    shares = [float(s.text.split("): ")[1].split(" %")[0]) for s in ranks]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=1)
    assert "--noTF32" in steps_told(rung.advice)[0]


def test_a_model_without_products(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    rung = tf32(subject(model=sketch.network(sketch.op("Mul", x, f32(2), name="y"))))
    assert rung.passed
    assert rung.evidence[-1].text == "The model has no products that TF32 changes."


def test_what_no_emulated_product_explains_is_not_blamed_on_one(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    network = sketch.network(sketch.op("Mul", x, f32(2), name="y"))
    rung = tf32(subject(model=network, fake={"broken": {"y": 1.3}}))
    assert rung.passed is False
    assert rung.cause.endswith(").")
    assert rung.nodes == ()


def test_the_headline_of_a_model_with_many_long_names_is_whole(subject):
    """The nodes stand under "Where", so that the headline need not list them."""
    sketch, ends = Sketch(), "/layer" * 6
    y = sketch.input("x", [4, 16])
    for index in range(12):
        weight = f32(np.random.default_rng(index).normal(size=(16, 16)) / 4)
        y = sketch.op("MatMul", y, weight, name=f"/model.{index}{ends}/conv/Conv")
    rung = tf32(subject(model=sketch.network(y), criterion=Criterion(rel_max=1e-7)))
    assert rung.passed is False
    assert len(rung.nodes) == 8
    run = diagnosis(diagnosis=(rung,))
    assert brief(diagnosed_screen(run)).title == diagnosed_screen(run).title
    assert listed(rung.nodes, most=4) in str(diagnosed_screen(run))


def test_in_an_engine(subject):
    rung = tf32(subject(criterion=Criterion(rel_max=1e-6), fake={}))
    assert rung.passed is False
    assert rung.how == "measured"
    texts = " ".join(sign.text for sign in rung.evidence)
    assert "engine (FP32, TF32 on)" in texts
    assert "engine (FP32, TF32 off)" in texts
    assert "NVIDIA_TF32_OVERRIDE is not set in the worker's environment; setting it to 0" in texts
    assert "changes nothing (relative RMS" in texts
    ranks = [s for s in rung.evidence if "it changes the outputs" in s.text]
    assert {s.nodes[0] for s in ranks} == {"a", "b", "y"}


def test_an_override_in_the_workers_environment_is_told(subject):
    rung = tf32(subject(fake={"environment": {"NVIDIA_TF32_OVERRIDE": "0"}}))
    told = next(s for s in rung.evidence if "OVERRIDE" in s.text)
    assert told.severity == "warning"
    assert told.text.startswith(
        "NVIDIA_TF32_OVERRIDE=0 is set in the worker's environment; without"
    )


@pytest.mark.parametrize(("on", "how"), [((1,), "emulated"), ((2,), "measured")])
def test_an_engine_that_cannot_be_built_leaves_what_is_known(subject, on, how):
    rung = tf32(subject(fake={"faults": [Fault("build", "segv", on=on)]}))
    assert rung.how == how
    assert any("The build ended with SIGSEGV" in s.text for s in rung.evidence)
