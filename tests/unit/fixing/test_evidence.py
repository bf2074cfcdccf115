"""What samples show of a network."""

import pytest
from onnx import TensorProto

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.fixing.attribute import Attribution
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.casts import low_type
from halfwise.graph.roles import roles_of
from halfwise.records import Observations, TensorName
from tests import models
from tests.unit.fixing.running import space_of
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting.runs import observation


def network():
    sketch = Sketch()
    x = sketch.input("x", [4])
    a = sketch.op("Mul", x, 2.0, name="a")
    moved = sketch.op("Reshape", a, [2, 2], name="move")
    counted = sketch.op("Cast", moved, name="count", to=TensorProto.INT64)
    back = sketch.op("Cast", counted, name="back", to=TensorProto.FLOAT)
    return sketch.network(sketch.op("Exp", back, name="b"))


def seen(**absmax: float) -> Observations:
    producers = {"x": None}
    return Observations(
        tensors=tuple(
            observation(name if name == "x" else f"{name}_out", producers.get(name, name), value)
            for name, value in absmax.items()
        ),
        inner=(),
        samples=("s0", "s1"),
    )


def limits(observations: Observations, fmt: Format, headroom: float) -> dict[TensorName, float]:
    roles = roles_of(network(), low_type(fmt))
    return Attribution(network(), roles, observations, fmt, headroom).limits


@pytest.mark.parametrize(
    ("absmax", "limited"),
    [(32_759, False), (32_760, True), (65_519, True), (65_520, False), (1e9, False), (0, False)],
)
def test_what_fits_but_not_with_headroom_is_limited(absmax, limited):
    found = limits(seen(a=absmax), FP16, 2.0)
    assert found == ({"a_out": 32_760} if limited else {})


def test_inputs_have_the_same_headroom():
    assert limits(seen(x=60_000), FP16, 2.0) == {"x": 32_760}


def test_without_headroom_nothing_is_limited():
    assert limits(seen(a=65_519, b=3), FP16, 1.0) == {}


def test_a_format_with_the_range_of_fp32_has_no_limits():
    assert limits(seen(a=65_519, b=2e38), BF16, 2.0) == {}


def test_a_mask_does_not_grow_with_the_data():
    sketch = Sketch()
    allowed = sketch.input("allowed", [4], TensorProto.BOOL)
    filled = sketch.op("Where", allowed, 0.0, -60_000.0, name="fill")
    masked = sketch.network(sketch.op("Add", sketch.input("x", [4]), filled, name="add"))
    known = seen(fill=60_000, add=60_010)
    found = Attribution(masked, roles_of(masked), known, FP16).limits
    assert found == {"add_out": 32_760}


def evidence(ill, **options):
    return space_of(ill, **options).evidence


def test_references_come_with_the_observation():
    space = space_of(models.small())
    session = Session(space.variant.case.network.model)
    for one, sample in zip(space.evidence.references, space.bench.samples, strict=True):
        expected = session.run(sample)
        assert all((one[name] == expected[name]).all() for name in one)


def test_what_overflows_is_certain():
    found = evidence(models.layer_norm())
    assert models.layer_norm().kept <= found.suspected
    assert any(guard.severity >= 1 for guard in found.guards)


def test_a_healthy_model_raises_no_suspicion():
    found = evidence(models.small())
    assert found.guards == ()
    assert found.limits == {}
    assert found.nonfinite == frozenset()


def test_headroom_gives_smaller_ranges():
    found = evidence(models.near_the_edge())
    assert found.limits
    without = evidence(models.near_the_edge(), headroom=1.0)
    assert without.limits == {}


def test_samples_that_join_are_looked_at_and_ranges_may_shrink():
    space = space_of(models.root_mean_square())
    variant, bench, observed = space.variant, space.bench, space.observed
    before = space.evidence
    observed.catch_up(variant, bench.samples)
    assert space.evidence is before
    large = Samples(("large",), lambda _: {"x": 20 * bench.samples[0]["x"]})
    space.join(large, [bench.judge.run(large[0], space.plan(space.choices))])
    assert space.evidence.observations.samples == (*before.observations.samples, "large")
    assert any(guard.severity >= 1 for guard in space.evidence.guards)
    assert not any(guard.severity >= 1 for guard in before.guards)
