"""What assignments cost."""

import numpy as np
import onnx
import pytest

from halfwise.emulation.runner import seen_shapes
from halfwise.fixing.planner import Planner
from halfwise.fixing.pricing import cost_model
from halfwise.fixing.worth import worth_of
from halfwise.graph.casts import low_type
from halfwise.graph.roles import Role, roles_of
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from tests import models


@pytest.fixture
def planner():
    ill = models.layer_norm()
    request = understand(ill.inputs, {})
    case = load_case(ill.proto, request.data, request.criterion)
    roles = roles_of(case.network, low_type(request.settings.fmt))
    return Planner(case, request.settings, roles, Silent())


def test_a_price_is_the_cost_that_worth_tells_and_the_model_runs_once(planner, monkeypatch):
    runs = []

    def seen(*args, **keywords):
        runs.append(1)
        return seen_shapes(*args, **keywords)

    monkeypatch.setattr("halfwise.fixing.pricing.seen_shapes", seen)
    compute = frozenset(n for n, role in planner.roles.items() if role.role is Role.COMPUTE)
    worth = worth_of(planner, frozenset())
    assert worth is not None
    assert planner.price(frozenset()) == worth.cost == 1
    assert planner.prices is not None
    assert planner.price(compute) == planner.prices.fp32 == worth.fp32 > 1
    assert planner.price(frozenset(sorted(compute)[:2])) > 1
    assert runs == [1]


def test_what_a_sequence_map_computes_is_not_seen_so_no_cost_is_known():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        mapped (float[4, 8] x) => (float[4, 8] y) {
            parts = SplitToSequence <axis = 0> (x)
            powers = SequenceMap <body = each (float[1, 8] a) => (float[1, 8] b) {
                b = Exp(a)
            }> (parts)
            y = ConcatFromSequence <axis = 0> (powers)
        }"""
    )
    request = understand({"x": np.ones((8, 4, 8), np.float32)}, {"allow_random": True})
    case = load_case(proto, request.data, request.criterion)
    roles = roles_of(case.network)
    assert cost_model(case, request.settings, roles, frozenset()) is None
