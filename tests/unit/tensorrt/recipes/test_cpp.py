import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfwise.records import ShapeRange
from halfwise.tensorrt.recipes.cpp import literal, render
from halfwise.tensorrt.worker.worker import NEVER_CONSTRAINED
from tests.unit.tensorrt.recipes.made import (
    METADATA,
    NASTY,
    constraint,
    names,
    profile,
    recipe,
    strong,
)

ROOT = Path(__file__).resolve().parents[4]
DECLARATIONS = ROOT / "tests" / "tensorrt_declarations"
CUDA_STUB = """#pragma once
using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
"""

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def compile_(source, *options):
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *options, source]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_compiler
@settings(max_examples=5)
@given(st.lists(names(), min_size=40, max_size=80))
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
        timing_cache="timing.cache",
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
    for name, text in render(made).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "build_engine.cpp"


@needs_compiler
@pytest.mark.parametrize("version", RECIPES)
def test_it_compiles_against_declarations_of_each_version(version, tmp_path):
    source = written(RECIPES[version], tmp_path)
    done = compile_(source, "-fsyntax-only", *_declared(version))
    assert done.returncode == 0, done.stderr


@needs_compiler
@pytest.mark.parametrize(
    ("made", "version", "message"),
    [
        (strong(), "8.6", "Strong typing needs TensorRT 9"),
        (recipe(), "11.4", "has no layer constraints"),
        (recipe(low="bf16"), "8.6", "TensorRT 8 has no BF16"),
    ],
)
def test_another_version_is_told_by_the_compiler(made, version, message, tmp_path):
    done = compile_(written(made, tmp_path), "-fsyntax-only", *_declared(version))
    assert done.returncode != 0
    assert message in done.stderr


def _declared(version):
    major, minor = version.split(".")[:2]
    defines = (f"-DNV_TENSORRT_MAJOR={major}", f"-DNV_TENSORRT_MINOR={minor}")
    return (*defines, "-isystem", DECLARATIONS)


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
        (tmp_path / "cuda_runtime_api.h").write_text(CUDA_STUB, encoding="utf-8")
        options += ["-isystem", str(tmp_path)]
    source = written(everything(made, tensorrt=f"{major}.{minor}"), tmp_path)
    done = compile_(source, "-fsyntax-only", *options)
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
def test_it_reads_layers_as_the_worker_does(tmp_path):
    written(recipe(), tmp_path)
    source = tmp_path / "reads.cpp"
    source.write_text(READS, encoding="utf-8")
    # What it does not need is left out, and with that all of TensorRT.
    small = ("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections")
    done = compile_(source, *small, "-o", tmp_path / "reads", *_declared("8.6"))
    assert done.returncode == 0, done.stderr
    for metadata, nodes in METADATA:
        told = subprocess.run(
            [tmp_path / "reads"], env={"METADATA": metadata}, capture_output=True, check=True
        )
        assert told.stdout.decode().split() == nodes


def test_all_kinds_without_precision_are_there():
    text = render(recipe())["build_engine.cpp"]
    assert all(f"LayerType::k{kind}: return false;" in text for kind in NEVER_CONSTRAINED)


def test_cmake_names_the_program():
    files = render(recipe())
    assert set(files) == {"build_engine.cpp", "CMakeLists.txt"}
    assert "add_executable(build_engine build_engine.cpp)" in files["CMakeLists.txt"]
