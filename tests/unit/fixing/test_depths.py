"""What plans that pass on samples show inside, and on held-out samples."""

import numpy as np
import pytest

from halfwise.fixing.depths import Depths
from halfwise.fixing.plan.plan import Plan, union
from halfwise.records import replace
from halfwise.reporting.remarks import reasons
from tests import models
from tests.models import Ill
from tests.unit.casing import names
from tests.unit.fixing.running import Listener, depths_of, found, kept, space_of
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.judging.test_inside import cube

pytestmark = pytest.mark.usefixtures("unrepaired")

NONE = names()


@pytest.fixture
def norm() -> Depths:
    return depths_of(space_of(models.layer_norm()))


def low(depths: Depths) -> Plan:
    return depths.space.plan(NONE)


def test_what_a_plan_lacks_inside_is_what_overflows(norm):
    space, needed = norm.space, names(*models.layer_norm().kept)
    enough = space.plan(needed)
    guards = norm.inside(low(norm)).guards
    needs = union([*map(space.variant.holdable, guards)])
    assert NONE < needs <= needed
    assert not norm.inside(enough).guards
    # What is held is no need, and another question.
    held = replace(norm, space=space.holding(space.evidence.guards))
    assert not held.inside(low(norm)).guards


# --- infinities inside, in whole runs ----------------------------------------------------------

LARGE = f32(np.linspace(-400, 400, 64).reshape(1, 64))


def test_what_is_held_is_told_and_minimal():
    listener = Listener()
    fixed = found(models.small_token(), listener)
    assert kept(fixed) == models.small_token().kept
    assert fixed.plan.minimal
    assert fixed.verdict.passed
    (note,) = [n for n in listener.notes if "the outputs pass, but" in n]
    assert "3 tensors are infinite inside; 4 nodes held" in note
    assert {g.tensor for g in fixed.guards if g.kind == "infinite"} == {
        *("square_out", "mean_out", "eps_out"),
    }


def test_what_the_outputs_need_too_has_its_own_reason():
    ill = models.small_token()
    both = np.concatenate([ill.inputs["x"], ill.inputs["x"][:, :, ::-1]])
    fixed = found(Ill(ill.proto, {"x": both}))
    assert kept(fixed) == ill.kept
    assert all(k.guard != "infinite" and k.error_without for k in fixed.plan.keep)


def test_heldout_samples_that_alone_are_infinite_inside_join():
    ill = models.small_token()
    calm = np.array(ill.inputs["x"])
    calm[:, :, -1, 5] = 0.1
    fixed = found(Ill(ill.proto, {"x": calm}), heldout={"x": ill.inputs["x"]})
    assert kept(fixed) == ill.kept
    assert fixed.verdict.passed
    assert fixed.search.joined
    assert fixed.verdict.intermediate_nonfinite == ()


def test_the_last_heldout_sample_fails():
    ill = models.small_token()
    calm = np.array(ill.inputs["x"])
    calm[:, :, -1, 5] = 0.1
    fixed = found(Ill(ill.proto, {"x": calm}), heldout={"x": ill.inputs["x"][:1]})
    assert not fixed.verdict.passed
    assert any("infinite inside" in reason for reason in reasons(fixed.verdict.failures))


def test_what_a_rule_lowers_stays_infinite():
    fixed = found(models.small_token(), lower=["square"])
    assert "square" not in kept(fixed)
    assert fixed.verdict.passed
    assert any(i.harmless is False for i in fixed.verdict.intermediate_nonfinite)


def test_what_reads_an_infinity_that_a_rule_makes_is_not_kept_in_vain():
    s = Sketch()
    x = s.input("x", [1, 64])
    inverse = s.op("Reciprocal", s.op("Mul", x, f32(1e6), name="large"), name="inverse")
    y = s.op("Add", x, s.op("Mul", inverse, f32(3.0), name="little"), name="end")
    ill = Ill(s.proto(y), {"x": np.abs(models.signals(1, 64, seed=7)) + np.float32(0.5)})
    assert kept(found(ill)) == {"large", "inverse"}
    fixed = found(ill, lower=["large"])
    assert kept(fixed) == set()
    assert fixed.verdict.passed
    assert any(i.harmless is False for i in fixed.verdict.intermediate_nonfinite)


def test_what_zeros_make_infinite_is_kept_from_it():
    s = Sketch()
    x = s.input("x", [1, 64])
    # log(x²) is -inf where the square becomes zero, and counts a thousandth of the rest.
    log = s.op("Log", s.op("Mul", x, x, name="square"), name="log")
    part = s.op("Max", log, f32(-30.0), name="floor")
    y = s.op("Add", x, s.op("Mul", part, f32(1e-4), name="little"), name="end")
    data = models.signals(1, 64, seed=7)
    data[..., ::7] = 3e-5
    fixed = found(Ill(s.proto(y), {"x": data}))
    assert {"square", "log"} <= kept(fixed)
    assert fixed.verdict.intermediate_nonfinite == ()


def harmless(s: Sketch, *outputs: str, x=LARGE) -> dict[str, bool | None]:
    """Return whether what is infinite inside is harmless, with everything low."""
    fixed = found(Ill(s.proto(*outputs), {"x": np.stack([x, x / 2])}))
    return {i.tensor: i.harmless for i in fixed.verdict.intermediate_nonfinite}


def test_what_ends_at_a_limit_and_what_nothing_reads_is_harmless():
    s = Sketch()
    assert harmless(s, s.op("Tanh", cube(s), name="gate")) == {"cube_out": True}
    s = Sketch()
    inner = cube(s)
    sizes = s.op("Shape", inner, name="sizes")
    small = s.op("Mul", "x", f32(2.0), name="small")
    assert harmless(s, s.op("Reshape", small, sizes, name="y")) == {"cube_out": True}
