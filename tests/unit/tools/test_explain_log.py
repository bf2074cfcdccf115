import io
import re

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from halfwise.api import explain_log
from halfwise.errors import CaseError
from halfwise.records import LogFinding, LogNode, LogReport, NodeName
from halfwise.reporting.parts import Lines, Table
from halfwise.tools.explain_log import NodePlaces, explained
from tests.unit.graph.sketch import Sketch

LOG = """\
&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=m.onnx --fp16
[11/20/2026-10:00:00] [W] [TRT] Detected layernorm nodes in FP16: /norm/Pow, /no/such/Node
[11/20/2026-10:00:01] [W] [TRT] Something that nobody has seen
&&&& PASSED TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=m.onnx --fp16
"""


@pytest.fixture
def model(tmp_path):
    sketch = Sketch()
    sketch.op("Pow", sketch.input("x", [1, 4]), 2.0, name="/norm/Pow")
    onnx.save(sketch.proto("/norm/Pow_out"), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_log_and_its_model(tmp_path, model):
    (tmp_path / "a.log").write_text(LOG)
    report = explain_log(tmp_path / "a.log", model=model)
    assert (report.lines, report.tensorrt, report.model_nodes) == (4, "8.6.1", 1)
    assert [f.kind for f in report.findings] == ["layernorm-fp16", "unknown"]
    assert report.nodes is not None
    assert [(n.name, n.node, n.op, n.place) for n in report.nodes] == [
        ("/norm/Pow", "/norm/Pow", "Pow", 1),
        ("/no/such/Node", None, "", None),
    ]


def test_a_stream_without_a_model():
    report = explain_log(io.BytesIO(LOG.encode("utf-16")))
    assert (report.source, report.nodes) == ("the log", None)
    assert len(report.findings) == 2


def test_what_cannot_be_read(tmp_path, model):
    with pytest.raises(CaseError, match=r"There is no log .*none\.log"):
        explain_log(tmp_path / "none.log")
    with pytest.raises(CaseError, match="is a folder, not a file"):
        explain_log(tmp_path)
    (tmp_path / "engine").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(CaseError, match="is not text"):
        explain_log(tmp_path / "engine")
    (tmp_path / "a.log").write_text(LOG)
    with pytest.raises(CaseError, match="There is no file"):
        explain_log(tmp_path / "a.log", model=tmp_path / "none.onnx")
    assert explain_log(tmp_path / "a.log", model=str(model)).nodes


def finding(**changed):
    values = {
        "kind": "layernorm-fp16",
        "severity": "warning",
        "sentence": "A LayerNorm runs in FP16.",
        "hint": "Keep it.",
        "source": "https://example.org/1",
        "nodes": tuple(f"/b.{i}/norm/Pow" for i in range(12)),
        "count": 3,
    }
    return msgspec.convert(values | changed, LogFinding)


def report(*findings, **changed):
    return msgspec.convert(
        {"source": "a.log", "lines": 10, "tensorrt": "8.6.1", "findings": findings} | changed,
        LogReport,
    )


def test_findings_stand_under_their_severity():
    log = report(finding(severity="error", count=1), finding(), finding(severity="info", nodes=()))
    shown = explained(log)
    assert shown.title == "1 error, 1 warning, 1 info"
    assert shown.passed is None
    assert shown.about == "a.log · 10 lines · TensorRT 8.6.1"
    assert [part.title for part in shown.parts] == ["Errors", "Warnings", "Infos"]
    assert shown.parts[0] == Lines(
        "Errors",
        (
            "A LayerNorm runs in FP16.",
            "  → At: /b.{0–11}/norm/Pow.",
            "  → Keep it.",
            "  → See https://example.org/1",
        ),
    )
    assert isinstance(shown.parts[1], Lines)
    assert shown.parts[1].lines[0] == "A LayerNorm runs in FP16. (3 lines)"


def test_unknown_lines_are_shown_in_their_own_words():
    unknown = [
        finding(kind="unknown", sentence=f"odd {i}\x1b[0m", hint="", nodes=()) for i in "ab" * 11
    ]
    shown = explained(report(*unknown))
    assert shown.title == "22 warnings; 22 not known"
    (part,) = shown.parts
    assert isinstance(part, Lines)
    assert part.lines[0] == "warning: odd a\N{REPLACEMENT CHARACTER}[0m (3 lines)"
    assert part.lines[-1] == "And 10 more of warning."


def test_nodes_of_the_model():
    names = [NodeName(f"/a/{i}") for i in range(20)]
    nodes = [
        LogNode(name=n, node=n, op="Pow", place=i + 1, via="node") for i, n in enumerate(names)
    ]
    nodes[0] = LogNode(name=names[0], node=NodeName("/b"), op="MatMul", place=9, via="reader")
    nodes[1] = LogNode(name=names[1])
    table = explained(report(finding(), nodes=tuple(nodes), model_nodes=99)).parts[-1]
    assert isinstance(table, Table)
    assert table.title == "Named nodes (19 of 20 names found among 99 nodes)"
    assert table.shown[0] == ("/a/0", "/b reads it", "MatMul", "9")
    assert table.shown[1] == ("/a/1", "not in the model", "", "")
    assert table.shown[2] == ("/a/2", "same", "Pow", "3")
    assert table.shown[-1] == ("and 8 more", "", "", "")


def test_nothing_to_explain():
    shown = explained(report(tensorrt=None))
    assert shown.title.startswith("Nothing to explain: ")
    assert shown.about == "a.log · 10 lines"
    assert shown.parts == ()


def test_hostile_names_stay_on_one_line():
    shown = explained(report(finding(nodes=("/a\n\x1b[2J/b",), sentence="x\ny")))
    text = repr(shown)
    assert not re.search(r"\\x1b|\\n", text)


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("[2026] worker-3: ValueError: could not broadcast", ["unknown"]),
        ("export.py: my.kit.ShapeException: none", ["unknown"]),
        ("evaluation: MeanSquaredError: 0.12", []),
        ("12 samples, Max Error: small", []),
    ],
)
def test_an_exception_in_the_middle_of_a_line_is_an_error(line, kinds, tmp_path):
    (tmp_path / "a.log").write_text(f"{line}\n")
    assert [f.kind for f in explain_log(tmp_path / "a.log").findings] == kinds


def node_unchecked(op, inputs, output, name="", **attributes):
    return helper.make_node(op, inputs, [output], name=name, **attributes)


@pytest.fixture
def places(tmp_path):
    branches = [
        helper.make_graph(
            [node_unchecked("Relu", ["b"], tensor, f"/{side}/Relu")], side, [], [value(tensor)]
        )
        for side, tensor in (("then", "t"), ("else", "e"))
    ]
    nodes = [
        node_unchecked("MatMul", ["x", "fc.weight"], "a", "/fc/MatMul"),
        node_unchecked("MyOp", ["a"], "b", "/custom/MyOp"),
        node_unchecked("If", ["c"], "d", "/If", then_branch=branches[0], else_branch=branches[1]),
        node_unchecked("Add", ["d", "onnx::Add_7"], "y"),
    ]
    # Not a model that a checker takes: unknown operators, constants without data.
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph), path)
    return NodePlaces(path)


def value(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2])


@pytest.mark.parametrize(
    ("name", "node", "op", "place", "via"),
    [
        ("/fc/MatMul", "/fc/MatMul", "MatMul", 1, "node"),
        ("/fc/MatMul_3", "/fc/MatMul", "MatMul", 1, "node"),
        ("fc.weight", "/fc/MatMul", "MatMul", 1, "reader"),
        ("fc_weight_constant", "/fc/MatMul", "MatMul", 1, "reader"),
        ("b", "/custom/MyOp", "MyOp", 2, "output"),
        ("a_output", "/fc/MatMul", "MatMul", 1, "output"),
        ("/else/Relu", "/else/Relu", "Relu", 4, "node"),
        ("node_of_y", "node_of_y", "Add", 6, "output"),
        ("node 3", "node_of_y", "Add", 6, "node"),
        ("onnx::Add_7", "node_of_y", "Add", 6, "reader"),
    ],
)
def test_names_of_a_log(places, name, node, op, place, via):
    found = places.find(name)
    assert (found.node, found.op, found.place, found.via) == (node, op, place, via)
    assert found.name == name


@pytest.mark.parametrize("name", ["/other/Add", "node 99", ""])
def test_what_the_model_lacks(places, name):
    found = places.find(name)
    assert (found.node, found.op, found.place, found.via) == (None, "", None, "")


def test_nodes_of_bodies_count(places):
    assert places.count == 6


def test_no_model(tmp_path):
    (tmp_path / "a.log").write_text("[W] hello")
    with pytest.raises(CaseError, match="not an ONNX model"):
        NodePlaces(tmp_path / "a.log")
