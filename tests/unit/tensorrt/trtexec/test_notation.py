import pytest

from halfwise.errors import UsageError
from halfwise.tensorrt.trtexec.notation import (
    OUTPUT_TYPES,
    PRECISIONS,
    command_line,
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
        (PRECISIONS, "", (), "its single quotes are not one pair"),
        (PRECISIONS, "", (), "its single quotes are not one pair"),
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
    assert command_line(["trtexec", "--x='b:0':fp32"]) == "trtexec '--x='\"'\"'b:0'\"'\"':fp32'"
