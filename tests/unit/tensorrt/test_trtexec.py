import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halfwise.errors import CaseError, UsageError
from halfwise.tensorrt.trtexec import (
    OUTPUT_TYPES,
    PRECISIONS,
    constraints_of,
    format_shapes,
    parse_shapes,
    split,
    unsayable,
)


def items(*words):
    return [(item.option, item.name, item.types) for item in constraints_of(split(words))]


def test_reading():
    spec = "--layerPrecisions=a:fp32,b:0:fp16"
    assert items(spec) == [(PRECISIONS, "a", ("fp32",)), (PRECISIONS, "b:0", ("fp16",))]
    assert items("--layerOutputTypes=a:fp32+fp16") == [(OUTPUT_TYPES, "a", ("fp32", "fp16"))]
    assert items("--layerPrecisions='a:0':fp32") == [(PRECISIONS, "a:0", ("fp32",))]
    assert [types for _, _, types in items("--layerPrecisions='a,b':fp32,c")] == [None] * 3
    for spec in ("--layerPrecisions=a + b:fp32", '--layerPrecisions="a + b":fp32'):
        assert items(spec) == [(PRECISIONS, "a + b", ("fp32",))]


@pytest.mark.parametrize("end", [" \\\n", "\\\n ", " `\r\n", " ^\r\n", "\n", " # this\n"])
def test_a_script(end):
    lines = ("trtexec --onnx=m", "--fp16", "'--layerPrecisions=/a/b:fp32,*:fp32'")
    script = f'#!/bin/sh\ncd "$(dirname -- "$0")" || exit 1\n{end.join(lines)} 2>&1 | tee log\n'
    assert [name for _, name, _ in items(script)] == ["/a/b", "*"]
    assert {"--onnx=m", "--fp16"} <= {*split([script])}


def test_what_cannot_be_read():
    with pytest.raises(UsageError, match="No closing quotation"):
        split(["trtexec --layerPrecisions='a:fp32"])


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
