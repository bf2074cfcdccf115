"""Polygraphy itself reads the command, where an environment with it is cached."""

import ast
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given

from halfwise.errors import CaseError
from halfwise.tensorrt.recipes.polygraphy import options, render
from tests.unit.tensorrt.recipes.made import (
    NASTY,
    constraint,
    names,
    profile,
    recipe,
    strong,
    words_of,
)

VENVS = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfwise-bench" / "venvs"
)
PROGRAMS = sorted(VENVS.glob("polygraphy-*/bin/polygraphy"))

needs_polygraphy = pytest.mark.skipif(
    not PROGRAMS, reason="no environment with Polygraphy: python bench/run.py peers makes it"
)


def command(made):
    program, verb, model, *words = words_of(render(made)["build_engine.sh"])
    assert (program, verb, model) == ("polygraphy", "convert", made.model)
    return words


def test_weak_typing_names_the_script():
    words = command(recipe())
    assert words == [
        *("--convert-to=trt", "--output=model.engine", "--fp16", "--precision-constraints=obey"),
        *("--trt-network-postprocess-script=constrain.py:constrain",),
        *("--onnx-flags", "native_instancenorm"),
    ]
    assert set(render(recipe())) == {"build_engine.sh", "constrain.py"}


def test_strong_typing_needs_no_script():
    assert "--strongly-typed" in command(strong())
    assert set(render(strong())) == {"build_engine.sh"}


def test_8_5_has_no_such_flag():
    assert "--onnx-flags" not in command(recipe(tensorrt="8.5"))


@given(names(without="-"))
def test_shapes(name):
    words = [word for group in options(recipe(profiles=(profile(name),))) for word in group]
    for end, batch in (("min", 1), ("opt", 8), ("max", 32)):
        shape = words[words.index(f"--trt-{end}-shapes") + 1]
        assert shape.rpartition(":")[::2] == (name, f"[{batch},3]")


def test_an_input_that_reads_like_an_option():
    with pytest.raises(CaseError, match="for an option"):
        render(strong(profiles=(profile("-x"),)))


@given(names())
def test_the_script_is_python(name):
    made = recipe(constraints=(constraint(name),), notes=(name,))
    tree = ast.parse(render(made)["constrain.py"], feature_version=(3, 8))
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
    texts = {n: t.replace("--load-timing-cache", "--no-such") for n, t in render(made).items()}
    done = run(made, tmp_path, texts)
    assert done.returncode != 0
    assert "no-such" in done.stdout + done.stderr
    assert "'tensorrt' is required" not in done.stdout + done.stderr


def run(made, folder, texts=None):
    for name, text in (texts or render(made)).items():
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
