import pytest

from halfwise.tensorrt.trtexec.check import check
from halfwise.tensorrt.trtexec.layers import layers_of
from halfwise.tensorrt.trtexec.notation import read
from tests.unit.tensorrt.trtexec.wired import checked, model


def found(folder, version, *words):
    return [(f.rule, f.severity) for f in checked(folder, version, *words)[0]]


def test_names_of_layers_are_fine(tmp_path):
    spec = "/a/MatMul:fp32,/b/Add:0:fp32,node_of_unnamed_out:fp16"
    findings, corrected = checked(tmp_path, (8, 6), spec)
    assert findings == ()
    assert "'/b/Add:0':fp32" in corrected.replace("'\"'\"'", "'")


@pytest.mark.parametrize(
    ("spec", "fix"),
    [
        ("/a/MatMal:fp32", "Did you mean /a/MatMul?"),
        ("two:fp32", "It is a tensor; it is computed by node /b/Split."),
        (
            "/a/MatMul + /a/Relu:fp32",
            "It is a layer of the engine, after fusion; its nodes are /a/MatMul, /a/Relu.",
        ),
        (
            "node:fp32",
            "node is halfwise's name for a node without a name in this file; trtexec calls it "
            "node_of_unnamed_out.",
        ),
        ("zzz*:fp32", "Give names of ONNX nodes."),
    ],
)
def test_names_that_match_nothing(tmp_path, spec, fix):
    (finding,), corrected = checked(tmp_path, (10, 3), spec)
    assert (finding.rule, finding.severity, finding.fix) == ("unmatched", "error", fix)
    assert corrected == ""


def test_names_of_the_parser_may_exist(tmp_path):
    name = "ONNXTRT_Broadcast_3"
    findings, corrected = checked(tmp_path, (10, 3), f"{name}:fp32")
    assert [(f.rule, f.severity) for f in findings] == [("parsers-own", "info")]
    assert corrected == f"--layerPrecisions={name}:fp32"


def test_wildcards_of_eight_are_written_out(tmp_path):
    (finding,), corrected = checked(tmp_path, (8, 6), "/a/*:fp32")
    assert finding.rule == "wildcard-unknown"
    assert "it is meant for 2 layers" in finding.message
    assert corrected == "--layerPrecisions=/a/MatMul:fp32,/a/Relu:fp32"
    assert checked(tmp_path, (8, 6), "*:fp32")[0] == ()
    assert checked(tmp_path, (9, 0), "/a/*:fp32")[0] == ()


def test_two_wildcards_in_a_name(tmp_path):
    (finding,), corrected = checked(tmp_path, (10, 3), "/*/Re*:fp32")
    assert finding.rule == "wildcard-unknown"
    assert corrected == "--layerPrecisions=/a/Relu:fp32"


@pytest.mark.parametrize(
    ("spec", "rules"),
    [
        ("/a/*:fp16", ["wildcard-type"]),
        ("/a/*:fp32", []),
        ("*:fp32,/a/*:fp32", []),
    ],
)
def test_the_types_of_output_wildcards(tmp_path, spec, rules):
    option = f"--layerOutputTypes={spec}"
    rules_of_casts = ["untouchable"] if "*:fp32," in spec else []
    assert [r for r, _ in found(tmp_path, (10, 16), option)] == rules + rules_of_casts
    if rules:
        _, corrected = checked(tmp_path, (9, 0), option)
        assert corrected == "--layerOutputTypes=/a/MatMul:fp16,/a/Relu:fp16"


def test_casts_end_the_build(tmp_path):
    (finding,), corrected = checked(tmp_path, (8, 6), "--layerOutputTypes=/b/Cast:fp32")
    assert (finding.rule, finding.severity) == ("untouchable", "error")
    assert finding.source.endswith("/3618")
    assert corrected == ""
    # As its own type, or as the precision, it does no harm and no good.
    assert found(tmp_path, (8, 6), "--layerOutputTypes=/b/Cast:fp16") == [
        ("untouchable", "warning")
    ]
    assert found(tmp_path, (8, 6), "/b/Cast:fp32") == [("untouchable", "warning")]
    # In 8.5 it is an Identity.
    assert found(tmp_path, (8, 5), "--layerOutputTypes=/b/Cast:fp32") == [
        ("untouchable", "warning")
    ]


def test_a_wildcard_over_casts_is_written_out(tmp_path):
    (finding,), corrected = checked(tmp_path, (8, 6), "--layerOutputTypes=*:fp32")
    assert finding.rule == "untouchable"
    assert "matches /b/Cast, a Cast to another type" in finding.message
    assert "/b/Cast" not in corrected
    assert "/c/Shape" not in corrected
    assert "/a/MatMul:fp32" in corrected


@pytest.mark.parametrize("name", ["/c/Shape", "weight"])
def test_integers_and_constants(tmp_path, name):
    findings, corrected = checked(tmp_path, (10, 3), f"{name}:fp32,/a/Relu:fp32")
    assert [f.rule for f in findings] == ["untouchable"]
    assert corrected == "--layerPrecisions=/a/Relu:fp32"


def test_the_number_of_types(tmp_path):
    assert found(tmp_path, (8, 6), "--layerOutputTypes=/b/Split:fp32+fp16") == []
    assert found(tmp_path, (8, 6), "--layerOutputTypes=/a/Relu:fp32+fp16") == [
        ("type-count", "error")
    ]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("/a/Relu:half", "it knows no type 'half', only fp32, fp16, int32, int8"),
        ("/a/Relu:bf16", "it knows no type 'bf16', only fp32, fp16, int32, int8"),
        ("/a/Relu", "it is not a name, a colon and a type"),
    ],
)
def test_what_trtexec_cannot_read(tmp_path, item, reason):
    (finding,), corrected = checked(tmp_path, (8, 6), "--layerPrecisions=" + item)
    assert finding.rule == "unreadable"
    assert finding.message.endswith(reason)
    assert corrected == ""


def test_bf16_from_nine_on(tmp_path):
    assert found(tmp_path, (9, 0), "/a/Relu:bf16") == []


def test_a_name_of_several_nodes(tmp_path):
    unchecked = model(tmp_path)
    unchecked.nodes[1][1].name = "/a/MatMul"
    layers = layers_of(unchecked)
    findings, corrected = check(read(["/a/MatMul:fp32"]), layers, {}, (8, 6))
    assert [(f.rule, f.severity) for f in findings] == [("duplicate-name", "warning")]
    assert findings[0].message.startswith("2 nodes are called /a/MatMul")
    assert corrected == "--layerPrecisions=/a/MatMul:fp32"
