from dataclasses import replace

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError, RecordMismatch
from halfwise.fixing.plan.starting import starting_plan
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.model import Network, network_from_proto, node_name
from halfwise.graph.roles import Role, float_io, roles_of
from halfwise.records import KeptNode, NodeName
from tests import graphs, models
from tests.unit.casing import names
from tests.unit.reporting import runs

NORM = network_from_proto(models.layer_norm().proto)
NEEDED = models.layer_norm().kept


def start(source, network=NORM):
    return starting_plan(network, roles_of(network), source)


def lowered(network: Network, kept, **options) -> onnx.ModelProto:
    rewritten = rewrite(network, roles_of(network), kept, FP16, **options)
    return ir.serde.serialize_model(rewritten.model)


def recorded(*kept: tuple[str, str], model: str = "other", candidates: int = 1):
    found = runs.run()
    assert found.plan is not None
    keep = tuple(KeptNode(node=NodeName(n), op=op, reason="") for n, op in kept)
    origin = found.provenance.model_copy(update={"model_sha256": model})
    plan = found.plan.model_copy(update={"keep": keep, "candidates": candidates})
    return found.model_copy(update={"plan": plan, "provenance": origin})


def test_a_mixed_model_gives_what_it_keeps():
    found = start(network_from_proto(lowered(NORM, NEEDED)))
    assert found.kept == NEEDED
    assert "8 of 8 compute nodes" in found.note


def test_nodes_of_other_names_are_known_by_their_outputs():
    proto = lowered(NORM, NEEDED)
    for i, node in enumerate(proto.graph.node):
        node.name = f"renamed_{i}"
    assert start(network_from_proto(proto)).kept == NEEDED


def test_a_name_that_another_operator_bears_is_no_match():
    proto = lowered(NORM, NEEDED)
    for node in proto.graph.node:
        node.name = {"mean": "gamma", "gamma": "mean"}.get(node.name, node.name)
    assert start(network_from_proto(proto)).kept == NEEDED


def test_names_that_halfwise_made_up_are_no_evidence():
    """Casts shift the numbers of nodes without a name."""
    proto = models.deep(4).proto
    for node in proto.graph.node:
        node.ClearField("name")
    network = network_from_proto(proto)
    kept = names("node_1", "node_3")
    mixed = lowered(network, kept)
    for node in mixed.graph.node:
        node.ClearField("name")
    assert start(network_from_proto(mixed), network).kept == kept


def test_a_model_without_casts_keeps_all_or_nothing():
    every = frozenset(n for n, role in roles_of(NORM).items() if role.role is Role.COMPUTE)
    assert start(NORM).kept == every
    assert start(network_from_proto(lowered(NORM, names(), low_io=float_io(NORM)))).kept == names()


def test_another_model_is_refused():
    with pytest.raises(CaseError, match="of 8 compute nodes only 0 are in it"):
        start(network_from_proto(models.small().proto))


def test_a_run_gives_what_its_plan_keeps():
    found = start(recorded(("square", "Pow"), ("root", "Sqrt"), model=NORM.sha256))
    assert found.kept == names("square", "root")
    assert "warning" not in found.note


def test_a_run_of_another_file_with_the_same_nodes_is_taken_with_a_warning():
    found = start(recorded(("square", "Pow")))
    assert found.kept == names("square")
    assert found.note.startswith("warning: ")


@pytest.mark.parametrize("stranger", [("squares", "Pow"), ("square", "Mul")])
@pytest.mark.parametrize("sha256", [NORM.sha256, "other"])
def test_a_run_of_another_model_is_refused(stranger, sha256):
    with pytest.raises(RecordMismatch, match=f"no {stranger[1]} called {stranger[0]}"):
        start(recorded(("root", "Sqrt"), stranger, model=sha256))


def test_a_run_of_another_file_that_keeps_nothing_is_told_by_its_compute_nodes():
    assert "as many compute nodes" in start(recorded(candidates=8)).note
    with pytest.raises(RecordMismatch, match="8 compute nodes where that has 7"):
        start(recorded(candidates=7))
    # The same file has other ones where the low format or the rules differ.
    assert start(recorded(model=NORM.sha256, candidates=7)).kept == names()


def test_a_run_without_a_plan_is_refused():
    run = runs.run().model_copy(update={"plan": None, "kind": "verify"})
    with pytest.raises(RecordMismatch, match="halfwise verify"):
        start(run)


@given(graphs.graphs(), st.data())
def test_every_rewritten_model_gives_its_plan_back(drawn, data):
    network = network_from_proto(drawn.proto)
    plan = data.draw(graphs.plans(network))
    computing = {n for n, role in roles_of(network).items() if role.role is Role.COMPUTE}
    mixed = network_from_proto(lowered(network, plan))
    assert start(mixed, network).kept == plan & computing
    # Without the names in the file, outputs tell the same.
    bare = replace(mixed, original_names={node_name(n): "" for n in mixed.nodes()})
    assert start(bare, network).kept == plan & computing
