import hashlib

import onnx
import pytest
from onnx import TensorProto, helper

from halfwise.errors import CaseError
from halfwise.graph import reading
from halfwise.graph.model import load_network
from halfwise.graph.reading import read_proto, said
from halfwise.graph.unchecked import read_unchecked
from halfwise.progress import PERCENT
from tests import models


@pytest.mark.parametrize("block", [7, 1 << 24])
def test_a_file_is_read_and_heard_in_blocks(tmp_path, monkeypatch, block):
    monkeypatch.setattr(reading, "_BLOCK_BYTES", block)
    proto, path = models.layer_norm().proto, tmp_path / "model.onnx"
    onnx.save(proto, path)
    digest = hashlib.sha256()
    assert read_proto(path, heard=digest.update) == proto
    assert digest.hexdigest() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_empty_file_is_no_model(tmp_path):
    (tmp_path / "model.onnx").touch()
    with pytest.raises(CaseError, match="not an ONNX model"):
        read_proto(tmp_path / "model.onnx")


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("load", [load_network, read_unchecked])
def test_how_much_is_read_is_told_until_the_last_quarter_of_the_nodes(tmp_path, load, external):
    path, told = tmp_path / "model.onnx", []
    kept = {"save_as_external_data": external, "size_threshold": 0}
    onnx.save(models.layer_norm().proto, path, **kept)
    load(path, lambda *step: told.append(step))
    assert {of for _, _, of in told} == {PERCENT}
    shares = [done / total for done, total, _ in told]
    assert shares[0] == 0
    assert 0.2 < shares[-1] < 1


def refused(*nodes, constants=()) -> Exception:
    """ONNX's error for nodes from x to y."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(onnx.checker.ValidationError) as caught:
        onnx.checker.check_model(model)
    return caught.value


def node(op, *inputs, name="r", **attributes):
    return helper.make_node(op, inputs, ["y"], name=name, **attributes)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            node("Relu", "x", "x"),
            "node 'r' (Relu): it has input size 2 not in range [min=1, max=1]",
        ),
        (
            node("Relu", "x", "x", name=""),
            "a Relu without a name: it has input size 2 not in range [min=1, max=1]",
        ),
        (
            node("Conv", "x", "x", foo=1),
            "node 'r' (Conv): Unrecognized attribute: foo for operator",
        ),
        (node("Concat", "x"), "node 'r' (Concat): Required attribute 'axis' is missing"),
        (node("Nope", "x"), "node 'r' (Nope): No Op registered for Nope with domain_version of 17"),
        (node("Relu", "z", name=""), "a Relu without a name reads 'z', which no node before it"),
        (node("Relu", "z"), "node 'r' (Relu) reads 'z', which no node before it computes"),
    ],
)
def test_a_refused_node_is_one_line_that_begins_with_it(made, told):
    assert said(refused(made)).startswith(told)
    assert len(said(refused(made)).splitlines()) == 1


def test_a_node_in_a_body_is_named_too():
    end = helper.make_tensor_value_info("end", TensorProto.FLOAT, [1, 4])
    inner = helper.make_node("Relu", ["x", "x"], ["end"], name="inner")
    body = helper.make_graph([inner], "body", [], [end])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [1])
    error = refused(node("If", "yes", then_branch=body, else_branch=body), constants=[yes])
    told = "node 'r' (If): 'inner' in it has input size 2 not in range [min=1, max=1]"
    assert said(error) == told


def test_what_an_older_onnx_prints_of_a_node_is_left_out():
    dump = 'input: "x"\noutput: "y"\nop_type: "Relu"\nattribute {\n  name: "k"\n}\n'
    error = ValueError(f"Unrecognized attribute: k.\n\n==> Context: Bad node spec: {dump}")
    assert said(error) == "Unrecognized attribute: k"


def test_the_first_of_several_errors_counts_and_one_without_words_has_a_name():
    outer = RuntimeError("in a pass")
    outer.__cause__ = ValueError("two\n  lines")
    assert said(outer) == "two lines"
    assert said(KeyError()) == "KeyError"
    assert "not UTF-8" in said(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"))
