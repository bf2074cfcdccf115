from halfwise.records import EngineLayer, NodePrecision, PrecisionProof, replace
from halfwise.reporting.engines import inspected, layer_table, node_table, share_words
from halfwise.reporting.parts import Lines, Table
from halfwise.wording import MOST_ROWS


def layer(name, precision, **more):
    return EngineLayer(name=name, type="kgen", nodes=(), precision=precision, **more)


def node(name, precision, asked=None):
    return NodePrecision(node=name, precision=precision, asked=asked)


PROOF = PrecisionProof(
    layers=(
        layer("conv", "fp16", inputs=("fp16", "fp16"), outputs=("fp16",)),
        layer("norm", "fp32", inputs=("fp32",), outputs=("fp16", "")),
        layer("copy", "other"),
    ),
    nodes=(
        node("conv", "fp16"),
        *(node(f"/b.{i}/Pow", "fp16", "fp32") for i in range(3)),
        node("/norm/Pow", "fp32", "fp32"),
        node("/Reshape", "other"),
    ),
    node_share={"fp16": 0.8, "fp32": 0.2},
    findings=("3 of 4 nodes that were to be FP32 compute in FP16.",),
    remarks=("A remark.",),
)


def test_the_report_on_an_engine():
    report = inspected(PROOF, "model.engine")
    assert report.passed is False
    assert [isinstance(part, Lines) for part in report.parts] == [True, *[False] * 2, True]


def test_layers_come_in_order_and_the_rest_is_counted():
    table = layer_table(PROOF.layers)
    assert table is not None
    assert table.shown[0] == ("conv", "kgen", "FP16")
    assert table.shown[1][2] == "FP32"
    many = layer_table([layer(f"l{i}", "fp16") for i in range(MOST_ROWS + 8)])
    assert many is not None
    assert many.shown[-1][0] == "and 8 more"


def test_without_a_model():
    proof = PrecisionProof(layers=(layer("a", "unknown"),), nodes=(), node_share={})
    report = inspected(proof, "e")
    assert report.passed is None
    assert [part.title for part in report.parts] == ["Layers"]
    table = report.parts[0]
    assert isinstance(table, Table)
    assert [c.title for c in table.columns] == ["layer", "type", "precision"]


def test_an_engine_without_layers():
    empty = PrecisionProof(layers=(), nodes=(), node_share={})
    report = inspected(empty, "e")
    assert report.parts == ()


def test_nodes_are_grouped_by_what_was_asked_and_wrong_ones_come_first():
    table = node_table(PROOF.nodes)
    assert table is not None
    assert table.shown == (
        ("FP32", "FP16", "3", "/b.{0–2}/Pow"),
        ("", "FP16", "1", "conv"),
        ("FP32", "FP32", "1", "/norm/Pow"),
    )
    assert node_table([node("/Reshape", "other")]) is None
    free = node_table([node("a", "fp16"), node("b", "unknown")])
    assert free is not None
    assert [c.title for c in free.columns] == ["is", "nodes", "which"]


def test_hostile_names_stay_on_one_line():
    bad = layer("a\x1b[31m\n" * 30, "fp16", tactic="x")
    report = inspected(replace(PROOF, layers=(bad,), findings=("x\ny",)), "e\ngine")
    cells = [
        cell for part in report.parts if isinstance(part, Table) for r in part.rows for cell in r
    ]
    lines = [line for part in report.parts if isinstance(part, Lines) for line in part.lines]
    assert not any(c in text for text in (*cells, *lines, report.about) for c in "\n\x1b")


def test_share_words():
    assert share_words({"fp32": 0.2, "fp16": 0.8}) == "FP16 80 %, FP32 20 %"
    assert share_words({}) == ""
