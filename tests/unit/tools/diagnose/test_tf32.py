import pytest

from halfwise.records import Criterion
from halfwise.reporting.remarks import steps_told
from halfwise.tools.diagnose.command import tf32
from tests.fake_tensorrt.faults import Fault


def test_it_does_not_matter(subject):
    rung = tf32(subject())
    assert rung.passed
    assert rung.how == "emulated"
    assert rung.nodes == ()


def test_it_matters_and_no_node_is_blamed(subject):
    rung = tf32(subject(criterion=Criterion(rel_max=1e-6)))
    assert (rung.passed, rung.nodes) == (False, ())
    assert rung.cause.startswith("TF32 alone puts the outputs out of tolerance")
    assert "--noTF32" in steps_told(rung.advice)[0]


def test_in_an_engine(subject):
    rung = tf32(subject(criterion=Criterion(rel_max=1e-6), fake={}))
    assert rung.passed is False
    assert rung.how == "measured"
    texts = " ".join(sign.text for sign in rung.evidence)
    assert "engine (FP32, TF32 on)" in texts
    assert "OVERRIDE" not in texts


def test_an_override_in_the_workers_environment_is_told(subject):
    rung = tf32(subject(fake={"environment": {"NVIDIA_TF32_OVERRIDE": "0"}}))
    told = next(s for s in rung.evidence if "OVERRIDE" in s.text)
    assert told.severity == "warning"
    assert "disables TF32 in every engine" in told.text


@pytest.mark.parametrize(("on", "how"), [((1,), "emulated")])
def test_an_engine_that_cannot_be_built_leaves_what_is_known(subject, on, how):
    rung = tf32(subject(fake={"faults": [Fault("build", "segv", on=on)]}))
    assert rung.how == how
    assert any("The build ended with SIGSEGV" in s.text for s in rung.evidence)
