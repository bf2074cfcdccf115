import numpy as np
import pytest

from halfwise.graph.loading import network_from_proto
from halfwise.graph.modern.groups import GroupNorm, read_groups
from halfwise.graph.modern.reading import read_normalisations
from tests.spellings import BIAS, IMAGES, WEIGHT, proto
from tests.unit.graph.patterns.test_normalisations import SPELLINGS, layer_norm
from tests.unit.graph.sketch import Sketch, f32


def groups(network) -> list[GroupNorm]:
    return list(read_groups(network, read_normalisations(network)))


def test_around_an_instance_normalization():
    (found,) = groups(network_from_proto(proto("torch_group_norm")))
    assert found.groups == 6
    assert found.eps == pytest.approx(1e-5)
    assert np.allclose(found.weight, WEIGHT)
    assert np.allclose(found.bias, BIAS)
    assert found.output.is_graph_output()


def written(first: list[int], axes: list[int], last: list[int]) -> list[GroupNorm]:
    s = Sketch()
    x = s.input("x", IMAGES)
    y = layer_norm(s, s.op("Reshape", x, first), axes, SPELLINGS[0])
    y = s.op("Reshape", y, last)
    weight = WEIGHT[:, None, None] if last[1] == 24 else f32(2.0)
    return groups(s.network(s.op("Mul", y, weight)))


def test_written_out():
    (found,) = written([0, 4, -1], [2], [0, 24, 6, 4])
    assert found.groups == 4
    assert np.allclose(found.weight, WEIGHT)
    assert not found.bias.any()
    assert len(written([-1, 4, 6, 24], [2, 3], [-1, 24, 6, 4])) == 1


@pytest.mark.parametrize(
    ("first", "axes", "last"),
    [
        ([0, 4, -1], [1], [0, 24, 6, 4]),
        ([0, 4, -1], [2], [0, 6, 24, 4]),
        ([-1, 4, 72], [2], [-1, 24, 6, 4]),
        ([0, 16, -1], [2], [0, 24, 6, 4]),
    ],
    ids=["over groups", "other shape behind", "groups across samples", "no whole groups"],
)
def test_what_is_none(first, axes, last):
    assert written(first, axes, last) == []


def test_weights_by_width_stay_outside():
    s = Sketch()
    x = s.input("x", ["batch", 24, 6, 24])
    y = layer_norm(s, s.op("Reshape", x, [0, 4, -1]), [2], SPELLINGS[0])
    back = s.op("Reshape", y, s.op("Shape", x))
    (found,) = groups(s.network(s.op("Mul", back, WEIGHT)))
    assert found.output.name == back
