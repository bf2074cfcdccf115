import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto

from halfwise.errors import CaseError, UsageError
from halfwise.graph.loading import read_unchecked
from halfwise.tensorrt.trtexec import (
    OUTPUT_TYPES,
    PRECISIONS,
    check,
    format_shapes,
    parse_shapes,
    read,
    unsayable,
)
from tests import models
from tests.unit.graph.sketch import Sketch, f32


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Two nodes of /a, a Split, a Cast to FP16, a Shape and its Cast, and a node without a name."""
    s = Sketch()
    x = s.input("x", [2, 4])
    y = s.op("MatMul", x, s.constant(f32(np.eye(4)), "weight"), name="/a/MatMul")
    y = s.op("Relu", y, name="/a/Relu")
    s.nodes.append(onnx.helper.make_node("Split", [y], ["one", "two"], name="/b/Split", axis=1))
    total = s.op("Add", "one", "two", name="/b/Add:0")
    low = s.op("Cast", total, to=TensorProto.FLOAT16, name="/b/Cast")
    size = s.op("Cast", s.op("Shape", y, name="/c/Shape"), to=TensorProto.FLOAT, name="/c/Cast")
    s.nodes.append(onnx.helper.make_node("Abs", [size], ["unnamed_out"]))
    top = onnx.helper.make_node("TopK", [y, "k"], ["values", "indices"], name="/d/TopK")
    s.nodes.append(top)
    s.constant(np.array([1], np.int64), "k")
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    path.write_bytes(s.proto(low, "unnamed_out", "values").SerializeToString())
    return read_unchecked(path)


def found(model, version, *words):
    return [(f.rule, f.severity) for f in check(read(words), model, version)]


OK: list[tuple[str, str]] = []
UNTOUCHABLE = [("untouchable", "error")]
USELESS = [("untouchable", "warning")]
UNMATCHED = [("unmatched", "error")]
CLASH = [("two-types", "error")]


@pytest.mark.parametrize(
    ("version", "spec", "rules"),
    [
        ((8, 6), "/a/MatMul:fp32,/b/Add:0:fp32,node_of_unnamed_out:fp16", OK),
        # The later of two equal names counts; of two patterns, whichever a hash table has first.
        ((8, 6), "/a/Relu:fp32,/a/Relu:fp16", CLASH),
        ((8, 6), "*:fp16,*:fp32", CLASH),
        ((8, 6), "--layerOutputTypes=/a/*:fp16,/a/*:fp32", UNMATCHED * 2),
        ((10, 3), "/a/*:fp32,*:fp16", CLASH),
        ((10, 3), "/a/*:fp32,/b/*:fp16", OK),
        # A name goes before a pattern.
        ((10, 3), "/a/*:fp32,/a/Relu:fp16", OK),
        ((8, 6), "*:fp32,/a/Relu:fp16", OK),
        # 8.6 has no patterns, 9 one * in a name.
        ((8, 6), "/a/*:fp32", UNMATCHED),
        ((9, 0), "/a/*:fp32", OK),
        ((10, 3), "/*/Re*:fp32", UNMATCHED),
        # From 8.6 on a Cast is a layer, which asserts its own output type.
        ((8, 6), "--layerOutputTypes=/b/Cast:fp32", UNTOUCHABLE),
        ((8, 6), "--layerOutputTypes=/b/Cast:fp16", OK),
        ((8, 5), "--layerOutputTypes=/b/Cast:fp32", OK),
        ((8, 6), "/b/Cast:fp32", USELESS),
        ((8, 6), "--layerOutputTypes=*:fp32", UNTOUCHABLE),
        ((8, 6), "--layerOutputTypes=*:fp32,/a/Relu:fp32", UNTOUCHABLE),
        ((8, 5), "--layerOutputTypes=*:fp32", OK),
        ((8, 6), "*:fp32", OK),
        # Integers, constants, and one type for floats and indices.
        ((10, 3), "/c/Shape:fp32,weight:fp32", USELESS * 2),
        ((10, 3), "--layerOutputTypes=/d/TopK:fp32", UNTOUCHABLE),
        ((10, 3), "/d/TopK:fp32", OK),
        ((8, 6), "--layerOutputTypes=/b/Split:fp32+fp16", OK),
        ((8, 6), "/a/Relu:half", [("unreadable", "error")]),
        ((8, 6), "/a/Relu:bf16", [("unreadable", "error")]),
        ((9, 0), "/a/Relu:bf16", OK),
        ((8, 6), "/a/Relu:fp32,", [("unreadable", "error")]),
        ((8, 6), "'/a/Relu:fp32", [("unreadable", "error")]),
        # Names that the parser makes up may exist.
        ((10, 3), "ONNXTRT_Broadcast_3:fp32", OK),
        ((10, 3), "weight:fp32,/nowhere:fp32", UNMATCHED + USELESS),
    ],
)
def test_a_constraint(model, version, spec, rules):
    assert found(model, version, spec) == rules


SPEC = "--layerPrecisions=/a/Relu:fp32"


@pytest.mark.parametrize(
    ("version", "words", "rules"),
    [
        ((8, 6), ["--precisionConstraints=obey"], []),
        ((8, 6), ["--precisionConstraints=prefer"], []),
        ((8, 6), ["--precisionConstraints=none"], ["no-effect"]),
        ((8, 6), [], ["no-effect"]),
        ((10, 3), ["--precisionConstraints=obey", "--stronglyTyped"], ["strong-typing"]),
        ((11, 2), ["--precisionConstraints=obey"], ["removed"]),
    ],
)
def test_a_command(model, version, words, rules):
    command = ["trtexec", "--onnx=m.onnx", "--fp16", *words, SPEC]
    assert [rule for rule, _ in found(model, version, *command)] == rules


def test_the_types_of_a_contradiction_are_named(model):
    (finding,) = check(read(["/a/Relu:fp32,/a/Relu:fp16"]), model, (8, 6))
    assert finding.message == (
        "/a/Relu gets fp32 by /a/Relu:fp32 and fp16 by /a/Relu:fp16 in --layerPrecisions: "
        "the later one counts"
    )


@pytest.mark.parametrize(
    ("spec", "fix"),
    [
        ("/a/MatMal:fp32", "Did you mean /a/MatMul?"),
        ("two:fp32", "trtexec knows it by other names. Write /b/Split:fp32."),
        (
            "/a/MatMul + /a/Relu:fp32",
            "trtexec knows it by other names. Write /a/MatMul:fp32,/a/Relu:fp32.",
        ),
        ("node:fp32", "trtexec knows it by other names. Write node_of_unnamed_out:fp32."),
        ("zzz*:fp32", "Give names of ONNX nodes."),
        ("/*/Re*:fp32", "This version knows no such pattern. Write /a/Relu:fp32."),
        ("relu:fp32", "trtexec cannot select by kind. Write /a/Relu:fp32."),
        ("ADD:fp32", "trtexec cannot select by kind. Write '/b/Add:0':fp32."),
    ],
)
def test_names_that_match_nothing(model, spec, fix):
    (finding,) = check(read([spec]), model, (10, 3))
    assert (finding.rule, finding.fix) == ("unmatched", fix)


@pytest.mark.parametrize("word", ["layernorm", "LayerNormalization", "layer_norm*", "NORM"])
def test_words_for_a_norm_that_is_written_out(word, tmp_path):
    onnx.save(models.layer_norm().proto, tmp_path / "m.onnx")
    model = read_unchecked(tmp_path / "m.onnx")
    (finding,) = check(read([f"{word}:fp32"]), model, (10, 3))
    spec = finding.fix.rpartition("Write ")[2].removesuffix(".")
    assert len(read([spec]).items) >= 7
    assert check(read([spec]), model, (10, 3)) == ()


def items(*words):
    return [(item.option, item.name, item.types) for item in read(words).items]


def test_reading():
    assert items("a:fp32,b:0:fp16") == [
        (PRECISIONS, "a", ("fp32",)),
        (PRECISIONS, "b:0", ("fp16",)),
    ]
    assert items("--layerOutputTypes=a:fp32+fp16") == [(OUTPUT_TYPES, "a", ("fp32", "fp16"))]
    assert items("--layerPrecisions='a:0':fp32") == [(PRECISIONS, "a:0", ("fp32",))]
    assert [types for _, _, types in items("--layerPrecisions='a,b':fp32,c")] == [None] * 3
    for spec in ("a + b:fp32", "--layerPrecisions=a + b:fp32", '--layerPrecisions="a + b":fp32'):
        assert items(spec) == [(PRECISIONS, "a + b", ("fp32",))]


@pytest.mark.parametrize("end", [" \\\n", "\\\n ", " `\r\n", " ^\r\n", "\n", " # this\n"])
def test_a_script(end):
    lines = ("trtexec --onnx=m", "--fp16", "'--layerPrecisions=/a/b:fp32,*:fp32'")
    script = f'#!/bin/sh\ncd "$(dirname -- "$0")" || exit 1\n{end.join(lines)} 2>&1 | tee log\n'
    command = read([script])
    assert [item.name for item in command.items] == ["/a/b", "*"]
    assert [command.value(name) for name in ("--onnx", "--fp16", "--best")] == ["m", "", None]


def test_what_cannot_be_read():
    with pytest.raises(UsageError, match="neither --layerPrecisions nor"):
        read(["trtexec --onnx=m.onnx"])
    with pytest.raises(UsageError, match="No closing quotation"):
        read(["trtexec --layerPrecisions='a:fp32"])


def test_what_cannot_be_said():
    assert [unsayable(name) for name in ("a", "a,b", "it's")] == ["", ",", "'"]


names = st.text(st.characters(exclude_characters=",'"), min_size=1)
shapes = st.lists(st.integers(-(2**31) + 1, 2**31 - 1), max_size=5).map(tuple)


@given(st.dictionaries(names, shapes, min_size=1))
@example({"a:0": (1, 3), "b": (), ":": ()})
def test_parsing_undoes_formatting(given_shapes):
    text = format_shapes(given_shapes)
    assert parse_shapes(text, "--minShapes") == given_shapes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1x3x224x224,b:1x8", {"a": (1, 3, 224, 224), "b": (1, 8)}),
        ("name:0:1x3", {"name:0": (1, 3)}),
        ("'name:0':1x3", {"name:0": (1, 3)}),
        ("scope/'name:0':1x3", {"scope/name:0": (1, 3)}),
        ("a:", {"a": ()}),
        ("'a':", {"a": ()}),
        ("a:scalar", {"a": ()}),
        ("a:0", {"a": (0,)}),
        ("a:-1x2", {"a": (-1, 2)}),
    ],
)
def test_names_and_sizes_are_read_as_trtexec_reads_them(text, expected):
    assert parse_shapes(text, "--minShapes") == expected


@pytest.mark.parametrize(
    "text",
    ["", "a", ":1x2", "a:1x2,", "'a:1x2", "'a'1x2", "'a,b':1", "'a':'b':1", "1x3x224x224"],
)
def test_what_is_no_name_colon_and_sizes(text):
    with pytest.raises(UsageError, match="is not a name, a colon and sizes") as error:
        parse_shapes(text, "--optShapes")
    assert "--optShapes=" in error.value.hint


@pytest.mark.parametrize(
    "sizes",
    ["1x", "x1", "1.5", "1x?x3", "1X3", " 1", "1*3", "2147483648", "9" * 5000, "٣", "None"],
)
def test_sizes_that_are_no_integers(sizes):
    with pytest.raises(UsageError, match="is not a 32-bit integer"):
        parse_shapes(f"a:{sizes}", "--maxShapes")


def test_a_name_that_comes_twice():
    with pytest.raises(UsageError, match="--maxShapes names input 'a' twice"):
        parse_shapes("a:1,a:2", "--maxShapes")


@pytest.mark.parametrize("name", ["a,b", "it's"])
def test_names_that_trtexec_cannot_read(name):
    with pytest.raises(CaseError, match="trtexec cannot take the input"):
        format_shapes({name: (1,)})


@given(st.text())
def test_any_text_gives_shapes_or_a_usage_error(text):
    try:
        found = parse_shapes(text, "--minShapes")
    except UsageError:
        return
    assert found
