import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halfwise.errors import CaseError, UsageError
from halfwise.tensorrt.trtexec.notation import (
    OUTPUT_TYPES,
    PRECISIONS,
    format_shapes,
    parse_shapes,
    read,
    unsayable,
    written,
)


def keys(*words):
    return [(k.option, k.name, k.types, k.fault) for k in read(words).keys]


def test_a_bare_specification_is_one_of_precisions():
    assert keys("a:fp32,b:0:fp16") == [
        (PRECISIONS, "a", ("fp32",), ""),
        (PRECISIONS, "b:0", ("fp16",), ""),
    ]
    assert not read(["a:fp32"]).whole


def test_types_of_outputs():
    assert keys("--layerOutputTypes=a:fp32+fp16") == [(OUTPUT_TYPES, "a", ("fp32", "fp16"), "")]


def test_quotes_stand_around_a_name():
    assert keys("--layerPrecisions='a:0':fp32") == [(PRECISIONS, "a:0", ("fp32",), "")]
    assert keys("--layerPrecisions='a,b':fp32") == [
        (PRECISIONS, "", (), "its single quotes do not form a pair"),
        (PRECISIONS, "", (), "its single quotes do not form a pair"),
    ]


@pytest.mark.parametrize("item", ["a", ":fp32", ""])
def test_what_is_no_name_and_type(item):
    (key,) = read([f"--layerPrecisions=b:fp32,{item}"]).keys[1:]
    assert key.fault == "it is not a name, a colon and a type"


def test_a_pasted_command():
    given = read(
        [
            "trtexec --onnx=m.onnx --fp16 \\\n  --precisionConstraints=obey \\\n"
            "  --layerPrecisions='/a/b:0':fp32 --layerOutputTypes=\"*:fp16\"\n"
        ]
    )
    assert given.whole
    assert given.words[:3] == ("trtexec", "--onnx=m.onnx", "--fp16")
    assert [k.name for k in given.keys] == ["/a/b:0", "*"]
    assert (given.value("--onnx"), given.value("--fp16"), given.value("--best")) == (
        "m.onnx",
        "",
        None,
    )


@pytest.mark.parametrize(
    "end", [" \\\n", "\\\n", " `\r\n", " ^\r\n", "\n", " # this\n", " \\\n # that\n"]
)
def test_the_command_of_a_script(end):
    lines = ("trtexec --onnx=m", "--fp16", "'--layerPrecisions=*:fp32'")
    script = f"#!/bin/sh\nTRT=trtexec\ntrtexec --help\n{end.join(lines)}\necho --done\n"
    given = read([script])
    assert given.words == ("trtexec", "--onnx=m", "--fp16", "--layerPrecisions=*:fp32")
    assert given.stray == ()


def test_what_is_the_shells_is_left_out():
    given = read(["CUDA=0 trtexec --onnx=m --layerPrecisions=a:fp32 2>&1 | tee --append log"])
    assert given.words == ("CUDA=0", "trtexec", "--onnx=m", "--layerPrecisions=a:fp32")
    assert given.stray == ()


def test_a_blank_behind_a_comma():
    given = read(["trtexec --onnx=m --layerPrecisions=a:fp32, b:fp32"])
    assert given.stray == ("b:fp32",)
    assert [k.fault for k in given.keys] == ["", "it is not a name, a colon and a type"]


def test_blanks_in_names():
    fused = "a + b"
    assert keys(f"{fused}:fp32") == [(PRECISIONS, fused, ("fp32",), "")]
    assert keys(f"--layerPrecisions={fused}:fp32") == [(PRECISIONS, fused, ("fp32",), "")]
    assert keys(f'--layerPrecisions="{fused}":fp32') == [(PRECISIONS, fused, ("fp32",), "")]


def test_options_alone_twice_and_without_a_value():
    given = read(["--layerPrecisions=a:fp32", "--layerPrecisions=b:fp32", "--layerOutputTypes"])
    assert not given.whole
    assert (given.repeated, given.split) == ((PRECISIONS,), (OUTPUT_TYPES,))


def test_what_cannot_be_read():
    with pytest.raises(UsageError, match="neither --layerPrecisions nor"):
        read(["trtexec --onnx=m.onnx"])
    with pytest.raises(UsageError, match="No closing quotation"):
        read(["trtexec --layerPrecisions='a:fp32"])


def test_writing():
    entries = [("a", ("fp32",)), ("b:0", ("fp32", "fp16")), ("c,d", ("fp32",)), ("*", ("fp16",))]
    assert written(entries) == "a:fp32,'b:0':fp32+fp16,*:fp16"
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
