"""A model, and copies of it with one node altered."""

import numpy as np

from halfwise.case import Samples
from halfwise.emulation.runner import ModelRunner
from halfwise.graph.loading import network_from_proto
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.walk import Walk
from tests.unit.graph.sketch import Sketch, f32

RNG = np.random.default_rng(5)
WEIGHTS = [f32(RNG.normal(size=(16, 16)) / 4) for _ in range(3)]
DATA = f32(RNG.normal(size=(3, 4, 16)))
SAMPLES = Samples(("s0", "s1", "s2"), lambda i: {"x": DATA[i]})


def proto(**altered):
    """Two branches that meet; `altered` gives the factor of a node's constant."""

    def scaled(name, array):
        return f32(array * altered.get(name, 1.0))

    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    a = sketch.op("MatMul", x, scaled("a", WEIGHTS[0]), name="a")
    b = sketch.op("MatMul", a, scaled("b", WEIGHTS[1]), name="b")
    c = sketch.op("Mul", a, scaled("c", f32(1e-12)), name="c")
    # The mean of what has none: rounding errors alone.
    centre = sketch.op("Sub", b, sketch.op("ReduceMean", b, name="mean", axes=[1]), name="centre")
    still = sketch.op("ReduceMean", centre, name="still", axes=[1])
    d = sketch.op("Add", sketch.op("Add", centre, c, name="join"), still, name="d")
    e = sketch.op("Softmax", d, name="e", axis=-1)
    return sketch.proto(sketch.op("MatMul", e, scaled("y", WEIGHTS[2]), name="y"))


def network(**altered):
    return network_from_proto(proto(**altered))


def side(model, **options):
    return ModelRunner(model, SAMPLES, "side", **options)


def walk_of(b, a=None, **options):
    whole = network()
    return Walk(whole, SAMPLES, a or side(whole.model, exact=True), b, **options)


def walked(b, a=None, **options):
    walk = walk_of(b, a, **options)
    walk.all()
    return walk


def comparison(b, a=None):
    return find_divergence(walk_of(b, a))
