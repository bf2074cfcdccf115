"""What counts as not finite inside: a tensor once, whatever types a mixed model has it in."""

import numpy as np

from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.judging.judge import judge
from halfwise.judging.reference import inspected_reference
from halfwise.records import Criterion
from tests import models
from tests.unit.casing import names, prepare
from tests.unit.graph.sketch import Sketch, f32


def judged(ill, *kept):
    prepared = prepare(ill)
    model = rewrite(prepared.network, prepared.roles, names(*kept), FP16).model
    nonfinite = inspected_reference(prepared.network, prepared.samples)[1]
    arguments = (prepared.samples, prepared.references, Criterion(), None)
    return judge(model, *arguments, reference_nonfinite=nonfinite)


def test_what_casts_convert_counts_once_by_the_name_in_the_model():
    s = Sketch()
    x = s.input("x", [1, 4])
    inner = s.op("Mul", s.op("Mul", x, f32(300.0), name="first"), f32(300.0), name="second")
    gate = s.op("Mul", s.op("Tanh", inner, name="gate"), f32(300.0), name="small")
    out = s.op("Mul", gate, f32(300.0), name="scaled")
    ill = models.Ill(s.proto(inner, out), {"x": np.full((2, 1, 4), 9.0, np.float32)})
    for kept in ((), ("gate",), ("second",)):
        found = judged(ill, *kept).verdict.intermediate_nonfinite
        told = {i.tensor: (i.producer, i.elements) for i in found}
        assert told == {"second_out": ("second", 8), "scaled_out": ("scaled", 8)}, kept


def test_an_output_that_is_nan_in_the_reference_too_is_no_news_in_another_type():
    """The file calls it otherwise: what it gives out is a Cast's."""
    s = Sketch()
    y = s.op("Log", s.input("x", [1, 4]), name="log")
    found = judged(models.Ill(s.proto(y), {"x": f32([[[1, -2, 3, -4]], [[1, 2, 3, 4]]])}))
    assert (found.verdict.intermediate_nonfinite, found.inside) == ((), {})
    side = found.verdict.outputs["log_out"].reference
    assert (side.nonfinite, side.elements) == (2, 8)
