"""What trtexec reads is what was meant: its own reading, in Python, gives the names back."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.records import ShapeRange
from halfwise.tensorrt.recipes.trtexec import MOST_ARGUMENT_BYTES, arguments, render
from tests.unit.tensorrt.recipes.made import constraint, names, profile, recipe, strong, words_of


def split(text, separator):
    """Read as `splitToStringVec` of sampleOptions.cpp: nothing follows a separator at the end."""
    parts = text.split(separator)
    return parts[:-1] if parts[-1] == "" else parts


def name_and_value(text):
    """Read as `splitNameAndValue` of sampleOptions.cpp."""
    quoted = split(text, "'")
    if len(quoted) != 1:
        assert len(quoted) == 3
        return quoted[0] + quoted[1], quoted[2][1:]
    *name, value = split(text, ":")
    return ":".join(name), value


def read(made):
    """Return options by name as trtexec splits them: at the first equals sign."""
    program, *words = words_of(render(made)["build_engine.sh"])
    assert program == "trtexec"
    assert words == arguments(made)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def test_a_model_whose_path_is_no_text():
    made = recipe(model=os.fsdecode(b"caf\xe9/m.onnx"))
    assert "\udce9/m.onnx" in render(made)["build_engine.sh"]


@given(st.lists(names(without=",'*\0"), min_size=1, max_size=5, unique=True))
def test_layers_are_read_back(layers):
    options = read(recipe(constraints=tuple(map(constraint, layers))))
    for option in ("--layerPrecisions", "--layerOutputTypes"):
        pairs = [name_and_value(item) for item in split(options[option], ",")]
        assert pairs == [(name, "fp32") for name in layers]


@given(names(without=",'\0"))
def test_shapes_are_read_back(name):
    options = read(recipe(profiles=(profile(name),)))
    for end, batch in (("min", 1), ("opt", 8), ("max", 32)):
        assert name_and_value(options[f"--{end}Shapes"]) == (name, f"{batch}x3")


def test_weak_typing_in_8():
    options = read(recipe())
    assert list(options) == [
        *("--onnx", "--saveEngine", "--fp16", "--precisionConstraints", "--layerPrecisions"),
        *("--layerOutputTypes", "--noTF32", "--profilingVerbosity", "--skipInference"),
    ]
    assert options["--precisionConstraints"] == "obey"


def test_nothing_kept_needs_no_constraints():
    options = read(recipe(constraints=(), tf32=True))
    assert set(options) == {
        *("--onnx", "--saveEngine", "--fp16", "--profilingVerbosity", "--skipInference"),
    }


@pytest.mark.parametrize(("version", "flag"), [("9.3", True), ("10", True), ("11.4", False)])
def test_strong_typing(version, flag):
    options = read(strong(tensorrt=version))
    assert ("--stronglyTyped" in options) == flag
    assert not options.keys() & {"--fp16", "--precisionConstraints", "--layerPrecisions"}


def test_bf16():
    assert "--bf16" in read(recipe(tensorrt="9.0", low="bf16"))


def test_integer_outputs_get_no_type():
    kept = (constraint("top", True, False), constraint("pow"))
    options = read(recipe(constraints=kept))
    assert options["--layerPrecisions"] == "top:fp32,pow:fp32"
    assert options["--layerOutputTypes"] == "pow:fp32"
    assert "--layerOutputTypes" not in read(recipe(constraints=kept[:1]))


def test_layers_that_were_constrained_are_named():
    kept = constraint("gemm", layers=("gemm", "(Unnamed Layer* 3) [Shuffle]"))
    options = read(recipe(constraints=(kept,)))
    assert options["--layerPrecisions"] == "gemm:fp32,(Unnamed Layer* 3) [Shuffle]:fp32"


@pytest.mark.parametrize(
    ("version", "name", "character"),
    [
        ("8.6", "a,b", ","),
        ("8.6", "it's", "'"),
        ("8.6", "*", "*"),
        ("9.0", "mul*", "*"),
        ("10.16", "mul*", "*"),
    ],
)
def test_names_that_trtexec_cannot_be_told(version, name, character):
    with pytest.raises(CaseError) as error:
        render(recipe(tensorrt=version, constraints=(constraint(name),)))
    assert character in error.value.message
    assert "--as python" in error.value.hint


def test_an_input_that_trtexec_cannot_be_told():
    with pytest.raises(CaseError, match="the input 'a,b'"):
        render(strong(profiles=(profile("a,b"),)))


def test_a_long_argument():
    many = tuple(constraint(f"/encoder/layer.{i}/norm/Pow") for i in range(5000))
    with pytest.raises(CaseError) as error:
        render(recipe(constraints=many))
    assert "--layerPrecisions" in error.value.message
    assert f"at most {MOST_ARGUMENT_BYTES - 1}" in error.value.message


def test_several_profiles():
    two = (profile(), profile(lengths=ShapeRange(min=(1,), opt=(2,), max=(3,))))
    words = arguments(strong(profiles=two))
    start = words.index("--profile=0")
    assert words[start : start + 8] == [
        *("--profile=0", "--minShapes=images:1x3", "--optShapes=images:8x3"),
        *("--maxShapes=images:32x3", "--profile=1", "--minShapes=images:1x3,lengths:1"),
        *("--optShapes=images:8x3,lengths:2", "--maxShapes=images:32x3,lengths:3"),
    ]
    with pytest.raises(CaseError, match="takes one optimization profile"):
        render(recipe(profiles=two))


@pytest.mark.parametrize(
    ("version", "typing", "words"),
    [
        ("8.5", "weak", {"--buildOnly", "--plugins=p.so"}),
        ("8.6", "weak", {"--skipInference", "--staticPlugins=p.so"}),
        ("11.4", "strong", {"--skipInference", "--staticPlugins=p.so"}),
    ],
)
def test_options_of_versions(version, typing, words):
    made = recipe if typing == "weak" else strong
    given_words = arguments(
        made(
            tensorrt=version,
            workspace_bytes=3 << 29,
            optimization_level=4,
            plugins=("p.so",),
            timing_cache="timing.cache",
        )
    )
    assert {
        *("--memPoolSize=workspace:1536", "--builderOptimizationLevel=4"),
        *("--timingCacheFile=timing.cache", *words),
    } <= set(given_words)


def test_tactic_sources():
    named = recipe(tactic_sources=("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"))
    assert (
        read(named)["--tacticSources"]
        == "-CUBLAS,-CUBLAS_LT,-CUDNN,+EDGE_MASK_CONVOLUTIONS,+JIT_CONVOLUTIONS"
    )
    with pytest.raises(CaseError, match="knows no tactic source JIT_CONVOLUTIONS"):
        render(named.model_copy(update={"tensorrt": "8.5"}))


def test_no_low_format():
    assert not set(read(recipe(low=None, constraints=()))) & {"--fp16", "--bf16", "--None"}


def test_what_trtexec_does_without_a_word_stands_in_comments():
    script = render(recipe(timing_cache="t.cache"))["build_engine.sh"]
    assert "# trtexec also writes to the timing cache." in script
    assert "# trtexec ignores names that no layer has" in script
    assert "# A node that the parser turns into several layers" in script
    built = recipe(constraints=(constraint("pow", layers=("pow",)),))
    assert "several layers" not in render(built)["build_engine.sh"]
    assert "ignores" not in render(strong())["build_engine.sh"]
