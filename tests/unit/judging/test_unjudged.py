import numpy as np
import pytest
from onnx import TensorProto

from halfwise.case import Case, Samples
from halfwise.emulation.ort import Session
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.model import node_name
from halfwise.graph.roles import roles_of
from halfwise.judging.unjudged import find_unjudged
from halfwise.records import Criterion, Unjudged
from tests.unit.graph.sketch import Sketch
from tests.unit.graph.test_bodies import choice

DRAWN = np.random.default_rng(7)


def case(flags, heldout=1):
    """An If whose flag is a sample's own; the last samples are held out."""
    s = Sketch()
    x, flag = s.input("x", [2, 3]), s.input("flag", [], TensorProto.BOOL)
    s.nodes.append(choice("choose", x, flag))
    network = s.network(s.op("Neg", "choose_out", name="neg"))
    data = [{"x": DRAWN.normal(size=(2, 3)).astype(np.float32), "flag": np.array(f)} for f in flags]
    samples = Samples(tuple(map(str, range(len(data)))), data.__getitem__)
    first = len(data) - heldout
    return Case(
        network=network,
        calibration=samples.select(range(first)),
        heldout=samples.select(range(first, len(data))),
        criterion=Criterion(),
        metric=None,
        notes=(),
        data_sha256="",
    )


def found(case, candidate=None):
    session = Session(case.network.model)
    references = [session.run(sample) for sample in case.heldout]
    return find_unjudged(case, candidate, case.heldout, references)


NEVER = Unjudged(
    kind="never-ran",
    name="choose",
    body="else_branch",
    op="If",
    around="choose",
    inputs=("flag",),
)


@pytest.mark.parametrize(
    ("flags", "idle"), [([True] * 4, (NEVER,)), ([True, False, True], ()), ([True, False], ())]
)
def test_a_branch_that_runs_on_no_sample_is_named(flags, idle):
    assert found(case(flags)) == idle


@pytest.mark.parametrize(("kept", "idle"), [((), (NEVER,)), (("choose",), ())])
def test_a_branch_that_stays_fp32_needs_no_sample(kept, idle):
    one = case([True, True])
    roles = roles_of(one.network)
    names = frozenset(node_name(n) for n in one.network.nodes() if n.name in kept)
    assert found(one, rewrite(one.network, roles, names, FP16).model) == idle


def test_a_candidate_without_that_node_has_to_be_tested():
    s = Sketch()
    other = s.network(s.op("Neg", s.input("x", [2, 3]), name="neg"))
    assert found(case([True, True]), other.model) == (NEVER,)
