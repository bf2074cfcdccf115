import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_tensor_value_info

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import TF32_INPUT, emulate_tf32, tf32_nodes
from halfwise.graph.loading import network_from_proto
from halfwise.metrics.difference import relative_rms
from halfwise.records import Criterion, NodeName
from halfwise.reporting.diagnosis import diagnosed_screen
from halfwise.reporting.parts import brief
from halfwise.reporting.steps import steps_told
from halfwise.tools.diagnose import tf32 as rung
from halfwise.tools.diagnose.tf32 import IN_TF32, in_kernels, tf32
from halfwise.wording import listed
from tests.fake_tensorrt.faults import Fault
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.reporting.diagnoses import diagnosis
from tests.unit.tools.compare.copies import WEIGHTS


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


def test_a_product_whose_rounding_overflows_an_output(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    product = sketch.op("MatMul", x, f32(np.eye(16) * (1 - 2.0**-13)), name="product")
    large = sketch.op("Mul", product, f32(2.0**127), name="large")
    network = sketch.network(sketch.op("Mul", large, f32(2), name="y"))
    samples = Samples(("s",), lambda _: {"x": f32(np.ones((4, 16)))})
    rung = tf32(subject(model=network, samples=samples))
    assert rung.evidence[-1].nodes == ("product",)
    assert rung.evidence[-1].text.startswith("In TF32 alone, it changes the outputs by inf (")


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
    assert all("measured in a kernel; emulated:" in s.text for s in ranks)


def test_a_product_that_cannot_be_tried_alone_is_ranked_by_emulation(subject):
    rung = tf32(subject(fake={"faults": [Fault("build", "segv", on=(3,))]}))
    assert any("No product was measured alone in a kernel" in s.text for s in rung.evidence)


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


def test_products_run_alone_on_what_they_have_in_fp32(subject):
    given = subject(fake={})
    network = given.case.network
    names = tf32_nodes(network)
    found = in_kernels(given, given.engines, names, 1)
    assert found.keys() == set(names) == {"a", "b", "y"}
    # The stand-in rounds to nearest, as the emulation does.
    session = Session(emulate_tf32(network, switched=True))
    for i, name in enumerate(names):
        outputs = session.run({**given.samples[1], TF32_INPUT: np.arange(len(names)) == i})
        right = given.references[1]
        expected = max(relative_rms(right[n], outputs[n]) for n in right)
        assert found[name].effect == pytest.approx(expected, rel=1e-2)
        assert found[name].own > IN_TF32


def test_so_many_are_followed(subject, monkeypatch):
    monkeypatch.setattr(rung, "FOLLOWED", 1)
    given = subject(fake={})
    names = tf32_nodes(given.case.network)
    found = in_kernels(given, given.engines, names, 0)
    assert [found[name].effect is None for name in names] == [False, True, True]


def test_only_those_that_are_asked_for(subject):
    given = subject(fake={})
    assert in_kernels(given, given.engines, [NodeName("b")], 0).keys() == {"b"}


def test_outputs_that_no_node_computes(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    weight = sketch.constant(WEIGHTS[0])
    y = sketch.op("MatMul", x, weight, name="y")
    proto = sketch.proto(y)
    proto.graph.output.append(make_tensor_value_info(weight, TensorProto.FLOAT, [16, 16]))
    given = subject(model=network_from_proto(proto), fake={})
    found = in_kernels(given, given.engines, [NodeName("y")], 0)
    (ran,) = found.values()
    assert ran.effect == ran.own > IN_TF32


def test_weights_that_nodes_compute_are_no_inputs_of_the_engine(subject, monkeypatch):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    turned = sketch.op("Transpose", WEIGHTS[0], name="turned", perm=[1, 0])
    network = sketch.network(sketch.op("MatMul", x, turned, name="y"))
    given = subject(model=network, fake={})
    cases, of = [], given.engines.of

    def remembered(case):
        cases.append(case)
        return of(case)

    monkeypatch.setattr(given.engines, "of", remembered)
    assert in_kernels(given, given.engines, [NodeName("y")], 0)[NodeName("y")].own > IN_TF32
    assert [v.name for v in cases[0].network.graph.inputs] == ["x"]
