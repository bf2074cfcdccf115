from halfwise.case import Samples
from halfwise.graph.loading import network_from_proto
from halfwise.progress import offered
from halfwise.records import Step
from halfwise.tools.diagnose.command import precision
from tests import models
from tests.unit.graph.sketch import Sketch, f32


def test_a_low_format_that_is_enough(subject):
    rung = precision(subject())
    assert rung.passed
    assert rung.how == "emulated"


def test_what_fix_attributes(subject):
    ill = models.layer_norm()
    count = len(next(iter(ill.inputs.values())))
    samples = Samples(tuple(f"s{i}" for i in range(count)), ill.sample)
    fix = Step(kind="fix", command=("halfwise", "fix"))
    with offered() as interruption:
        rung = precision(subject(model=network_from_proto(ill.proto), samples=samples, fix=fix))
    assert not interruption.ready  # Ctrl-C ends a diagnosis, and keeps nothing
    assert rung.passed is False
    assert "square" in rung.nodes
    assert rung.cause.startswith("FP16 breaks the model. With the graph as it is, keeping ")
    assert any("square" in sign.nodes and sign.severity == "error" for sign in rung.evidence)
    assert rung.advice[0] == fix
    assert not any("Usual fix" in sign.text for sign in rung.evidence)


def test_what_overflows_is_told_before_what_nearly_does(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    near = sketch.op("Mul", x, f32(1.8e4), name="near")
    beyond = sketch.op("Mul", near, f32(10), name="beyond")
    network = sketch.network(sketch.op("Mul", beyond, f32(1e-5), name="y"))
    rung = precision(subject(model=network))
    told = [s.text for s in rung.evidence if s.severity == "error" and s.nodes]
    assert "beyond FP16's" in told[0]
    assert "times that" in told[-1]
