import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.records import Recipe, ShapeRange, replace
from halfwise.tensorrt.recipe import (
    KINDS,
    MOST_ARGUMENT_BYTES,
    arguments,
    cpp,
    facts,
    literal,
    python,
    trtexec,
)
from halfwise.tensorrt.versions import version_of
from halfwise.tensorrt.worker import NEVER_CONSTRAINED, layer_nodes
from tests.bindings.api import VERSIONS, load
from tests.bindings.reading import complaints
from tests.unit.graph.sketch import Sketch
from tests.unit.tensorrt.compiling import DECLARATIONS, compile_, declared, needs_compiler
from tests.unit.tensorrt.recipes import (
    METADATA,
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
        )
    )
    assert {
        *("--memPoolSize=workspace:1536", "--builderOptimizationLevel=4"),
        *words,
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
        read(replace(late, tactic_sources=("CUDNN",)))
    with pytest.raises(CaseError, match="has no tactic source JIT_CONVOLUTIONS"):
        trtexec(replace(named, tensorrt="8.5"))


def test_no_low_format():
    assert not set(read(recipe(low=None, constraints=()))) & {"--fp16", "--bf16", "--None"}


def test_what_trtexec_does_without_a_word_stands_in_comments():
    script = trtexec(recipe())["build_engine.sh"]
    assert "# trtexec silently ignores names that no layer has" in script
    assert "# If the parser turns a node into several layers" in script
    built = recipe(constraints=(constraint("pow", layers=("pow",)),))
    assert "several layers" not in trtexec(built)["build_engine.sh"]
    assert "ignores" not in trtexec(strong())["build_engine.sh"]


def test_a_real_shell_gives_back_the_words(tmp_path):
    """The command runs where the script lies, whatever the names."""
    folder = tmp_path / "a 'folder'"
    folder.mkdir()
    nasty = [name for name in NASTY if "\0" not in name]
    made = strong(model=nasty[0], plugins=tuple(nasty), notes=tuple(NASTY))
    script, program = folder / "build_engine.sh", tmp_path / "trtexec"
    script.write_text(trtexec(made)["build_engine.sh"], encoding="utf-8", newline="")
    program.write_text('#!/bin/sh\npwd\nprintf "%s\\0" "$@"\n')
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", script], capture_output=True, check=True, env=path)
    place, _, words = done.stdout.decode().partition("\n")
    assert place == str(folder)
    assert words.split("\0") == [*arguments(made), ""]
    assert [file.name for file in folder.iterdir()] == ["build_engine.sh"]


@pytest.mark.parametrize("name", NASTY)
def test_facts_are_lines_whatever_the_names(name):
    text = trtexec(recipe(model="m", run=name, notes=(name,)))["build_engine.sh"]
    comments = text.split("\ncd --")[0]
    assert comments.splitlines() == comments.split("\n")
    assert all(line.startswith("#") and not line.endswith("\\") for line in comments.split("\n"))


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
def test_json_is_the_recipe(name):
    made = recipe(constraints=(constraint(name),), profiles=(profile(name),), run=name)
    text = KINDS["json"](made)["recipe.json"]
    assert json.loads(text)["constraints"][0]["node"] == name
    assert json.loads(text)["schema_version"] == 1
    assert Recipe.from_json(text) == made


OLDEST = (3, 8)
ROOT = Path(__file__).resolve().parents[3]


def data(text):
    """Return the literal that the script calls RECIPE."""
    body = ast.parse(text, feature_version=OLDEST).body
    (literal,) = (
        node.value
        for node in body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "RECIPE"
    )
    return ast.literal_eval(literal)


@given(st.lists(names(), min_size=1, max_size=4, unique=True))
def test_names_are_given_back(nodes):
    made = recipe(
        constraints=tuple(map(constraint, nodes)),
        model=nodes[0],
        run=nodes[0],
        plugins=tuple(nodes),
        profiles=(profile(nodes[0]),),
        notes=tuple(nodes),
    )
    text = python(made)["build_engine.py"]
    found = data(text)
    assert found["keep"] == nodes
    assert found["plugins"] == nodes
    assert found["model"] == nodes[0]
    assert found["profiles"][0]["shapes"][nodes[0]]["opt"] == [8, 3]
    # Names stand in the literal and in comments, where there are none but visible characters.
    assert not set(text.splitlines()[0]) - set("#!/usr/bin/env python3")


@pytest.mark.parametrize("made", [recipe(), strong(), recipe(constraints=()), recipe(model="é")])
def test_an_old_python_reads_it(made, tmp_path):
    script = tmp_path / "build_engine.py"
    script.write_text(python(made)["build_engine.py"], encoding="utf-8")
    compile(script.read_text(encoding="utf-8"), str(script), "exec", dont_inherit=True)
    pythons = [sys.executable, *_oldest()]
    for interpreter in pythons:
        done = subprocess.run(
            [interpreter, script, "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "--tactic-sources" in done.stdout


def _oldest():
    found = shutil.which("python3.8")
    if found is None:
        return [str(p) for p in Path.home().glob(".pyenv/versions/3.8.*/bin/python")][:1]
    works = subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0
    return [found] if works else []


def test_without_tensorrt_it_says_so(tmp_path):
    script = tmp_path / "build_engine.py"
    script.write_text(python(recipe())["build_engine.py"], encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No module named 'tensorrt'" in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_comments_end_with_their_line(tmp_path):
    script = tmp_path / "build_engine.py"
    script.write_text(python(recipe(notes=NASTY))["build_engine.py"], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, "--help"], capture_output=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["build_engine.py"]


ARGPARSE = {"add_argument", "model", "parse_args", "timing_cache", "verbose"}
WEAK = {"RECIPE['typing'] == 'weak'": "BuilderFlag.FP16"}
"""Weak typing is refused from the version on that lacks the flag (`demand_version`)."""


@pytest.mark.parametrize("made", [recipe(), strong()])
def test_every_attribute_is_in_the_real_bindings_or_guarded(made):
    found = complaints(python(made)["build_engine.py"], [load(v) for v in VERSIONS], WEAK)
    foreign = [c for c in found if c.endswith("is not in any version")]
    assert {c.split()[2] for c in foreign} <= ARGPARSE
    assert [c for c in found if c not in foreign] == []


@pytest.mark.parametrize(
    ("made", "version", "status", "words"),
    [
        (recipe, "8.6.1", 0, "constrained 1 of 2 nodes to FP32"),
        (recipe, "10.0.1", 0, "note: this recipe is for TensorRT 8.6; this is 10.0.1"),
        (recipe, "11.4.0", 1, "no longer has layer constraints"),
        (strong, "8.6.1", 1, "strong typing needs TensorRT 9"),
        (strong, "10.0.1", 0, "engine"),
        (strong, "11.4.0", 0, "engine"),
    ],
)
def test_it_builds_in_the_stand_in_of_each_version(
    made, version, status, words, tmp_path, interpreter
):
    s = Sketch()
    s.op("Pow", s.input("images", ["N", 3]), 2.0, name="pow")
    model = tmp_path / "model.onnx"
    onnx.save(s.proto("pow_out"), model)
    given_recipe = made(
        model="model.onnx",
        files={"model.onnx": hashlib.sha256(model.read_bytes()).hexdigest()},
        profiles=(profile(),),
        constraints=(constraint("pow"), constraint("gone")) if made is recipe else (),
        workspace_bytes=1 << 20,
    )
    done = built(given_recipe, version, tmp_path, interpreter)
    assert done.returncode == status, done.stderr
    assert words in done.stdout + done.stderr
    if status == 0:
        digest = hashlib.sha256((tmp_path / "model.engine").read_bytes()).hexdigest()
        assert f"sha256 {digest}" in done.stdout
        model.write_bytes(model.read_bytes() + b"\x00")
        assert "its SHA-256 differs" in built(given_recipe, version, tmp_path, interpreter).stderr


def test_a_timing_cache_that_is_not_taken_stays_as_it_is(tmp_path, interpreter):
    s = Sketch()
    s.op("Pow", s.input("images", ["N", 3]), 2.0, name="pow")
    model = tmp_path / "model.onnx"
    onnx.save(s.proto("pow_out"), model)
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
    made = recipe(model="model.onnx", files={"model.onnx": sha256}, profiles=(profile(),))
    cache = tmp_path / "t.cache"
    cache.write_bytes(b"of another GPU")
    done = built(made, "8.6.1", tmp_path, interpreter, "--timing-cache", cache)
    assert "neither used nor changed" in done.stdout
    assert cache.read_bytes() == b"of another GPU"
    cache.unlink()
    assert built(made, "8.6.1", tmp_path, interpreter, "--timing-cache", cache).returncode == 0
    assert cache.read_bytes()


def built(made, version, folder, interpreter, *options):
    script = folder / "build_engine.py"
    script.write_text(python(made)["build_engine.py"], encoding="utf-8")
    paths = os.pathsep.join(map(str, (ROOT / "tests" / "fake_tensorrt", ROOT, ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": paths, "HALFWISE_FAKE_TENSORRT": version}
    command = [interpreter, script, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_it_reads_layers_as_the_worker_does():
    text = python(recipe())["build_engine.py"]
    made: dict[str, Any] = {"__name__": "recipe", "__file__": "build_engine.py"}
    exec(compile(text, "build_engine.py", "exec"), made)  # noqa: S102 - what a user would run
    assert frozenset(made["NEVER_CONSTRAINED"]) == NEVER_CONSTRAINED
    for metadata, nodes in METADATA:
        layer = SimpleNamespace(metadata=metadata)
        assert made["layer_nodes"](layer) == layer_nodes(layer) == nodes
    assert made["layer_nodes"](SimpleNamespace(name="conv")) == ["conv"]


def test_the_script_without_a_low_format():
    assert data(python(recipe(low=None))["build_engine.py"])["low"] is None


@needs_compiler
@settings(max_examples=2)
@given(st.lists(names(), min_size=100, max_size=200))
def test_literals_hold_the_bytes_of_names(tmp_path_factory, texts):
    texts = [*texts, *NASTY, "", "x" * 1000, "é" * 200]
    folder = tmp_path_factory.mktemp("literals")
    source = folder / "names.cpp"
    items = ",\n".join(f"std::string({literal(t)}, {len(t.encode())})" for t in texts)
    source.write_text(
        "#include <iostream>\n#include <string>\nint main() {\n"
        f"for (auto const& s : {{\n{items}\n}}) {{ std::cout << s.size() << ':' << s; }}\n}}\n",
        encoding="ascii",
    )
    done = compile_(source, "-o", folder / "names")
    assert done.returncode == 0, done.stderr
    printed = subprocess.run([folder / "names"], capture_output=True, check=True).stdout
    assert printed == b"".join(b"%d:%s" % (len(t.encode()), t.encode()) for t in texts)


def test_bytes_of_file_names_that_are_no_text_stay_what_they_are():
    assert literal(os.fsdecode(b"caf\xe9")) == '"caf\\351"'


def everything(made, **changed):
    """Return a recipe with all that a recipe can hold, named nastily."""
    return made(
        model='a "b" \\',
        plugins=("p\n.so",),
        profiles=(
            profile('im"ages'),
            profile(lengths=ShapeRange(min=(1,), opt=(2,), max=(3,))),
        ),
        workspace_bytes=5 << 30,
        optimization_level=5,
        tactic_sources=("CUBLAS", "EDGE_MASK_CONVOLUTIONS"),
        notes=NASTY,
        **changed,
    )


RECIPES = {
    "8.5": recipe(tensorrt="8.5", constraints=tuple(map(constraint, NASTY))),
    "8.6": everything(recipe, constraints=tuple(map(constraint, NASTY))),
    "8.6.1": recipe(low=None),
    "9.3": recipe(tensorrt="9.3", low="bf16"),
    "10.16": everything(strong),
    "11.4": strong(tensorrt="11.4", tactic_sources=()),
}


def written(made, folder):
    for name, text in cpp(made).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "build_engine.cpp", folder / "run_engine.cpp"


_BREADTH = [
    version if version in ("8.5", "11.4") else pytest.param(version, marks=pytest.mark.slow)
    for version in RECIPES
]


@needs_compiler
@pytest.mark.parametrize("version", _BREADTH)
def test_it_compiles_against_declarations_of_each_version(version, tmp_path):
    for program in written(RECIPES[version], tmp_path):
        done = compile_(program, "-fsyntax-only", *declared(version))
        assert done.returncode == 0, done.stderr


@needs_compiler
@pytest.mark.parametrize(
    ("made", "version", "message"),
    [
        (strong(), "8.6", "Strong typing needs TensorRT 9"),
        (recipe(), "11.4", "no longer has layer constraints"),
        (recipe(low="bf16"), "8.6", "TensorRT 8 has no BF16"),
    ],
)
def test_another_version_is_told_by_the_compiler(made, version, message, tmp_path):
    builds, _ = written(made, tmp_path)
    done = compile_(builds, "-fsyntax-only", *declared(version))
    assert done.returncode != 0
    assert message in done.stderr


def _headers():
    """Return the folder of NVIDIA's headers on this machine, where there is one."""
    told = os.environ.get("TENSORRT_INCLUDE")
    usual = ["/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/local/tensorrt/include"]
    places = [told] if told else usual
    return next((Path(p) for p in places if (Path(p) / "NvInfer.h").is_file()), None)


@needs_compiler
@pytest.mark.skipif(_headers() is None, reason="no NvInfer.h here: set TENSORRT_INCLUDE")
def test_it_compiles_against_nvidias_headers(tmp_path):
    folder = _headers()
    assert folder is not None
    text = (folder / "NvInferVersion.h").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines() if line.startswith("#define ")]
    macros = {words[1]: words[2] for words in lines if len(words) > 2}
    major, minor = (
        int(macros.get(value, value))
        for value in (macros["NV_TENSORRT_MAJOR"], macros["NV_TENSORRT_MINOR"])
    )
    made = recipe if major < 9 else strong
    options = ["-isystem", str(folder)]
    if shutil.which("nvcc") is None and not (folder / "cuda_runtime_api.h").is_file():
        shutil.copy(DECLARATIONS / "cuda_runtime_api.h", tmp_path)
        options += ["-isystem", str(tmp_path)]
    for program in written(everything(made, tensorrt=f"{major}.{minor}"), tmp_path):
        done = compile_(program, "-fsyntax-only", *options)
        assert done.returncode == 0, done.stderr


READS = """#define main built
#include "build_engine.cpp"
#undef main
char const* nvinfer1::ILayer::getMetadata() const noexcept { return std::getenv("METADATA"); }
int main()
{
    alignas(16) char room[64]{};
    for (auto const& node : nodesOf(*reinterpret_cast<nvinfer1::ILayer*>(room)))
    {
        std::cout << node << '\\n';
    }
}
"""


@needs_compiler
def test_it_reads_layers_as_the_worker_does_cpp(tmp_path):
    written(recipe(), tmp_path)
    source = tmp_path / "reads.cpp"
    source.write_text(READS, encoding="utf-8")
    # What it does not need is left out, and with that all of TensorRT.
    small = ("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections")
    done = compile_(source, *small, "-o", tmp_path / "reads", *declared("8.6"))
    assert done.returncode == 0, done.stderr
    for metadata, nodes in METADATA:
        told = subprocess.run(
            [tmp_path / "reads"], env={"METADATA": metadata}, capture_output=True, check=True
        )
        assert told.stdout.decode().split() == nodes


@pytest.mark.parametrize("version", VERSIONS)
def test_kinds_without_precision_are_those_of_the_worker_and_the_version(version):
    text = cpp(recipe())["build_engine.cpp"]
    case = (
        r"(?:#if NV_TENSORRT_MAJOR > (\d+) .*MINOR >= (\d+)\)\n)?    case .*::k(\w+): return false;"
    )
    found = {
        kind: (int(major or 8), int(minor or 5)) for major, minor, kind in re.findall(case, text)
    }
    assert set(found) == NEVER_CONSTRAINED
    there = load(version).members("LayerType")
    assert all((first <= version_of(version)) == (kind in there) for kind, first in found.items())


def test_cmake_names_the_programs():
    files = cpp(recipe())
    sources = set(files) - {"CMakeLists.txt"}
    assert sources == {"build_engine.cpp", "run_engine.cpp", "arrays.h"}
    for program in ("build_engine", "run_engine"):
        assert f"add_executable({program} {program}.cpp)" in files["CMakeLists.txt"]
