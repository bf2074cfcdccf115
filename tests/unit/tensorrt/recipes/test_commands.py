import ast
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.records import Recipe, ShapeRange
from halfwise.tensorrt.recipes.commands import (
    KINDS,
    MOST_ARGUMENT_BYTES,
    arguments,
    polygraphy,
    polygraphy_options,
    shell_script,
    trtexec,
)
from halfwise.tensorrt.recipes.programs import facts
from tests.unit.tensorrt.recipes.made import (
    NASTY,
    constraint,
    names,
    profile,
    recipe,
    strong,
    words_of,
)


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
    program, *words = words_of(trtexec(made)["build_engine.sh"])
    assert program == "trtexec"
    assert words == arguments(made)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def test_a_model_whose_path_is_no_text():
    made = recipe(model=os.fsdecode(b"caf\xe9/m.onnx"))
    assert "\udce9/m.onnx" in trtexec(made)["build_engine.sh"]


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
        trtexec(recipe(tensorrt=version, constraints=(constraint(name),)))
    assert character in error.value.message
    assert "--as python" in error.value.hint


def test_an_input_that_trtexec_cannot_be_told():
    with pytest.raises(CaseError, match="the input 'a,b'"):
        trtexec(strong(profiles=(profile("a,b"),)))


def test_a_long_argument():
    many = tuple(constraint(f"/encoder/layer.{i}/norm/Pow") for i in range(5000))
    with pytest.raises(CaseError) as error:
        trtexec(recipe(constraints=many))
    assert "--layerPrecisions" in error.value.message
    assert f"Linux allows {MOST_ARGUMENT_BYTES - 1}" in error.value.message


def test_several_profiles():
    two = (profile(), profile(lengths=ShapeRange(min=(1,), opt=(2,), max=(3,))))
    words = arguments(strong(profiles=two))
    start = words.index("--profile=0")
    assert words[start : start + 8] == [
        *("--profile=0", "--minShapes=images:1x3", "--optShapes=images:8x3"),
        *("--maxShapes=images:32x3", "--profile=1", "--minShapes=images:1x3,lengths:1"),
        *("--optShapes=images:8x3,lengths:2", "--maxShapes=images:32x3,lengths:3"),
    ]
    with pytest.raises(CaseError, match="supports one optimization profile"):
        trtexec(recipe(profiles=two))


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
    late = recipe(tensorrt="11.4", tactic_sources=("JIT_CONVOLUTIONS",))
    assert read(late)["--tacticSources"] == "-EDGE_MASK_CONVOLUTIONS,+JIT_CONVOLUTIONS"
    with pytest.raises(CaseError, match="has no tactic source CUDNN"):
        read(late.model_copy(update={"tactic_sources": ("CUDNN",)}))
    with pytest.raises(CaseError, match="has no tactic source JIT_CONVOLUTIONS"):
        trtexec(named.model_copy(update={"tensorrt": "8.5"}))


def test_no_low_format():
    assert not set(read(recipe(low=None, constraints=()))) & {"--fp16", "--bf16", "--None"}


def test_what_trtexec_does_without_a_word_stands_in_comments():
    script = trtexec(recipe(timing_cache="t.cache"))["build_engine.sh"]
    assert "# trtexec also writes to the timing cache." in script
    assert "# trtexec silently ignores names that no layer has" in script
    assert "# If the parser turns a node into several layers" in script
    built = recipe(constraints=(constraint("pow", layers=("pow",)),))
    assert "several layers" not in trtexec(built)["build_engine.sh"]
    assert "ignores" not in trtexec(strong())["build_engine.sh"]


VENVS = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfwise-bench" / "venvs"
)
PROGRAMS = sorted(VENVS.glob("polygraphy-*/bin/polygraphy"))

needs_polygraphy = pytest.mark.skipif(
    not PROGRAMS, reason="no environment with Polygraphy: python bench/run.py peers makes it"
)


def command(made):
    program, verb, model, *words = words_of(polygraphy(made)["build_engine.sh"])
    assert (program, verb, model) == ("polygraphy", "convert", made.model)
    return words


def test_weak_typing_names_the_script():
    words = command(recipe())
    assert words == [
        *("--convert-to=trt", "--output=model.engine", "--fp16", "--precision-constraints=obey"),
        *("--trt-network-postprocess-script=constrain.py:constrain",),
        *("--onnx-flags", "native_instancenorm"),
    ]
    assert set(polygraphy(recipe())) == {"build_engine.sh", "constrain.py"}


def test_strong_typing_needs_no_script():
    assert "--strongly-typed" in command(strong())
    assert set(polygraphy(strong())) == {"build_engine.sh"}


def test_8_5_has_no_such_flag():
    assert "--onnx-flags" not in command(recipe(tensorrt="8.5"))


@given(names(without="-"))
def test_shapes(name):
    words = [
        word for group in polygraphy_options(recipe(profiles=(profile(name),))) for word in group
    ]
    for end, batch in (("min", 1), ("opt", 8), ("max", 32)):
        shape = words[words.index(f"--trt-{end}-shapes") + 1]
        assert shape.rpartition(":")[::2] == (name, f"[{batch},3]")


def test_an_input_that_reads_like_an_option():
    with pytest.raises(CaseError, match="as an option"):
        polygraphy(strong(profiles=(profile("-x"),)))


@given(names())
def test_the_script_is_python(name):
    made = recipe(constraints=(constraint(name),), notes=(name,))
    tree = ast.parse(polygraphy(made)["constrain.py"], feature_version=(3, 8))
    (literal,) = (
        n.value
        for n in tree.body
        if isinstance(n, ast.Assign) and n.col_offset == 0 and isinstance(n.value, ast.Dict)
    )
    assert ast.literal_eval(literal)["keep"] == [name]


def everything(made):
    return made(
        tf32=True,
        profiles=(profile("a:b"), profile("a:b")),
        workspace_bytes=1 << 30,
        optimization_level=4,
        tactic_sources=("CUBLAS", "JIT_CONVOLUTIONS"),
        plugins=("p.so",),
        timing_cache="timing.cache",
        notes=NASTY,
    )


@needs_polygraphy
@pytest.mark.parametrize("made", [recipe(), strong(), everything(recipe), everything(strong)])
def test_polygraphy_reads_the_command(made, tmp_path):
    done = run(made, tmp_path)
    # It got as far as it can without TensorRT.
    assert "'tensorrt' is required" in done.stdout + done.stderr


@needs_polygraphy
def test_polygraphy_tells_what_it_does_not_know(tmp_path):
    made = recipe(timing_cache="x", tactic_sources=())
    texts = {n: t.replace("--load-timing-cache", "--no-such") for n, t in polygraphy(made).items()}
    done = run(made, tmp_path, texts)
    assert done.returncode != 0
    assert "no-such" in done.stdout + done.stderr
    assert "'tensorrt' is required" not in done.stdout + done.stderr


def run(made, folder, texts=None):
    for name, text in (texts or polygraphy(made)).items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / made.model).touch()
    path = f"{PROGRAMS[-1].parent}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PATH": path}
    return subprocess.run(
        ["sh", folder / "build_engine.sh"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


@given(st.lists(names(without="\0"), min_size=1, max_size=5))
def test_a_shell_gives_back_the_words(words):
    script = shell_script(["a comment"], [["program"], words])
    assert words_of(script) == ["program", *words]


def test_a_real_shell_gives_back_the_words(tmp_path):
    words = [name for name in NASTY if "\0" not in name]
    script = tmp_path / "build.sh"
    script.write_text(shell_script([], [["printf", "%s\\0"], words]), encoding="utf-8", newline="")
    done = subprocess.run(["sh", script], capture_output=True, check=True)
    assert done.stdout.decode().split("\0") == [*words, ""]
    assert [path.name for path in tmp_path.iterdir()] == ["build.sh"]


def test_the_script_runs_where_it_lies(tmp_path):
    folder = tmp_path / "a 'folder'"
    folder.mkdir()
    (folder / "build.sh").write_text(shell_script([], [["pwd"]]), encoding="utf-8")
    done = subprocess.run(["sh", folder / "build.sh"], capture_output=True, check=True, text=True)
    assert done.stdout == f"{folder}\n"


@pytest.mark.parametrize("name", NASTY)
def test_facts_are_lines_whatever_the_names(name):
    lines = facts(recipe(model=name, run=name, notes=(name,)))
    assert all(line.splitlines() in ([line], []) for line in lines)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (recipe(), "weakly typed: FP16 is allowed, 1 node constrained to FP32"),
        (recipe(constraints=()), "weakly typed: FP16 is allowed."),
        (recipe(low=None, constraints=()), "weakly typed: all FP32"),
        (strong(), "strongly typed: the Casts in the ONNX file set what is FP32"),
        (strong(low=None, tf32=True), "strongly typed: all FP32"),
    ],
)
def test_facts_tell_the_typing(made, words):
    assert words in facts(made)[0]


@given(names())
def test_it_is_the_recipe(name):
    made = recipe(constraints=(constraint(name),), profiles=(profile(name),), run=name)
    text = KINDS["json"](made)["recipe.json"]
    assert json.loads(text)["constraints"][0]["node"] == name
    assert json.loads(text)["schema_version"] == 1
    assert Recipe.model_validate_json(text) == made
