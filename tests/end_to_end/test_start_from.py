"""`--start-from`: the search begins with a plan of any origin, and ends with a minimal one."""

import json

import msgspec
import onnx
import onnx_ir as ir
import pytest

from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.records import Remark
from halfwise.reporting.remarks import note
from tests import models
from tests.models import Ill
from tests.unit.casing import names

NORM = models.layer_norm()


@pytest.fixture
def mixed(tmp_path):
    """Save a model of which some nodes are kept; return its path."""

    def mixed(ill: Ill, *kept: str):
        network = network_from_proto(ill.proto)
        low = rewrite(network, roles_of(network), names(*kept), FP16).model
        onnx.save(ir.serde.serialize_model(low), tmp_path / "mixed.onnx")
        return "mixed.onnx"

    return mixed


def told(ended) -> str:
    return " ".join(
        note(msgspec.convert(r, Remark, strict=False)) for r in ended.record["plan"]["remarks"]
    )


@pytest.mark.parametrize("source", ["first", "first/run.json", "first/model.onnx"])
def test_what_halfwise_made_is_where_it_ends(fix, call, source):
    first = fix(NORM, "--no-repair")
    assert first.code == 0
    first.folder.rename(first.folder.with_name("first"))
    ended = fix(NORM, "--no-repair", "--start-from", source)
    assert ended.code == 0, ended.err
    assert ended.kept == NORM.kept
    assert ended.record["plan"]["minimal"]
    assert "the starting plan keeps 4 nodes and passes; this plan keeps 4" in told(ended)
    assert ended.record["provenance"]["options"]["start_from"] == source
    assert call("report", "run").out == ended.out


def test_a_plan_that_is_too_large_is_shrunk(fix, mixed):
    every = [n.name for n in NORM.proto.graph.node]
    ended = fix(NORM, "--no-repair", "--start-from", mixed(NORM, *every))
    assert ended.code == 0, ended.err
    assert ended.kept == NORM.kept
    assert ended.record["plan"]["minimal"]
    assert "8 of 8 compute nodes are in mixed.onnx" in told(ended)
    assert "the starting plan keeps 8 nodes and passes; this plan keeps 4" in told(ended)


def test_a_plan_that_fails_is_extended(fix, mixed):
    ended = fix(NORM, "--no-repair", "--start-from", mixed(NORM, "square", "gamma"))
    assert ended.code == 0, ended.err
    assert ended.kept == NORM.kept
    assert "the starting plan keeps 2 nodes and fails; this plan keeps 4" in told(ended)


def test_a_model_of_another_tool(fix, tmp_path, mixed):
    """Nodes have other names, as after fusing; outputs tell which they are."""
    proto = onnx.load(tmp_path / mixed(NORM, *NORM.kept))
    for i, node in enumerate(proto.graph.node):
        node.name = f"graph_{i}"
    onnx.save(proto, tmp_path / "peer.onnx")
    ended = fix(NORM, "--no-repair", "--start-from", "peer.onnx")
    assert ended.code == 0, ended.err
    assert "the starting plan keeps 4 nodes and passes" in told(ended)


def test_nodes_that_a_rule_lowers_are_not_taken_over(fix, mixed):
    ended = fix(NORM, "--start-from", mixed(NORM, *NORM.kept, "gamma"), "--lower", "gamma")
    assert ended.code == 0, ended.err
    assert "the starting plan keeps 4 nodes and passes" in told(ended)


def test_a_run_of_the_same_nodes_in_another_file(fix):
    first = fix(NORM, "--no-repair")
    first.folder.rename(first.folder.with_name("first"))
    other = Ill(onnx.ModelProto.FromString(NORM.proto.SerializeToString()), NORM.inputs)
    other.proto.doc_string = "exported again"
    ended = fix(other, "--no-repair", "--start-from", "first")
    assert ended.code == 0, ended.err
    assert "Warning: the plan comes from the run of" in told(ended)


def test_what_belongs_to_another_model_is_refused(fix, refused, saved, mixed, tmp_path):
    first = fix(NORM)
    first.folder.rename(tmp_path / "first")
    model, inputs = saved(models.small(), "small")
    fixing = ("fix", model, "--inputs", inputs, "-o", "run", "--start-from")
    assert "belongs to another model" in refused(7, *fixing, "first")
    assert "only 0 of 3 compute nodes" in refused(3, *fixing, mixed(NORM, "square"))


def test_what_holds_no_plan_is_refused(refused, files, call, tmp_path):
    fixing = ("fix", files[0], "--inputs", files[1], "-o", "run", "--start-from")
    assert "Found no model or run at absent" in refused(3, *fixing, "absent")
    assert "not an ONNX model" in refused(3, *fixing, files[1])
    (tmp_path / "empty").mkdir()
    assert "not a run folder" in refused(7, *fixing, "empty")
    (tmp_path / "broken.json").write_text(json.dumps({"schema_version": 99}))
    assert "schema version 99" in refused(7, *fixing, "broken.json")
    assert call("verify", files[0], files[0], "--inputs", files[1], "-o", "judged").code == 0
    assert "halfwise verify" in refused(7, *fixing, "judged")


def test_repairs_may_take_away_what_the_starting_plan_keeps(fix):
    first = fix(NORM, "--no-repair")
    assert first.kept == NORM.kept
    first.folder.rename(first.folder.with_name("first"))
    ended = fix(NORM, "--start-from", "first")
    assert ended.code == 0, ended.err
    assert [repair["rule"] for repair in ended.record["plan"]["repairs"]] == ["scale"]
