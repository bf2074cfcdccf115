import ast
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.tensorrt.recipes import polygraphy
from halfwise.tensorrt.recipes.python import render
from halfwise.tensorrt.worker.worker import NEVER_CONSTRAINED, layer_nodes
from tests.bindings.api import VERSIONS, load
from tests.bindings.reading import complaints
from tests.unit.graph.sketch import Sketch
from tests.unit.tensorrt.recipes.made import (
    METADATA,
    NASTY,
    constraint,
    names,
    profile,
    recipe,
    strong,
)

OLDEST = (3, 8)
ROOT = Path(__file__).resolve().parents[4]


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
    text = render(made)["build_engine.py"]
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
    script.write_text(render(made)["build_engine.py"], encoding="utf-8")
    compile(script.read_text(encoding="utf-8"), str(script), "exec", dont_inherit=True)
    pythons = [sys.executable, *_oldest()]
    for python in pythons:
        done = subprocess.run(
            [python, script, "--help"], capture_output=True, text=True, check=False
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
    script.write_text(render(recipe())["build_engine.py"], encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No module named 'tensorrt'" in done.stderr


def test_comments_end_with_their_line(tmp_path):
    script = tmp_path / "build_engine.py"
    script.write_text(render(recipe(notes=NASTY))["build_engine.py"], encoding="utf-8")
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
    found = complaints(render(made)["build_engine.py"], [load(v) for v in VERSIONS], WEAK)
    foreign = [c for c in found if c.endswith("is not in any version")]
    assert {c.split()[2] for c in foreign} <= ARGPARSE
    assert [c for c in found if c not in foreign] == []


@pytest.mark.parametrize(
    ("made", "version", "status", "words"),
    [
        (recipe, "8.6.1", 0, "constrained 1 of 2 nodes to FP32"),
        (recipe, "10.0.1", 0, "note: this recipe is for TensorRT 8.6; this is 10.0.1"),
        (recipe, "11.4.0", 1, "has no layer constraints any more"),
        (strong, "8.6.1", 1, "strong typing needs TensorRT 9"),
        (strong, "10.0.1", 0, "engine"),
        (strong, "11.4.0", 0, "engine"),
    ],
)
def test_it_builds_in_the_stand_in_of_each_version(made, version, status, words, tmp_path):
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
    done = built(given_recipe, version, tmp_path)
    assert done.returncode == status, done.stderr
    assert words in done.stdout + done.stderr
    if status == 0:
        digest = hashlib.sha256((tmp_path / "model.engine").read_bytes()).hexdigest()
        assert f"sha256 {digest}" in done.stdout
        model.write_bytes(model.read_bytes() + b"\x00")
        assert "its SHA-256 differs" in built(given_recipe, version, tmp_path).stderr


def test_a_timing_cache_that_is_not_taken_stays_as_it_is(tmp_path):
    s = Sketch()
    s.op("Pow", s.input("images", ["N", 3]), 2.0, name="pow")
    model = tmp_path / "model.onnx"
    onnx.save(s.proto("pow_out"), model)
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
    made = recipe(model="model.onnx", files={"model.onnx": sha256}, profiles=(profile(),))
    cache = tmp_path / "t.cache"
    cache.write_bytes(b"of another GPU")
    done = built(made, "8.6.1", tmp_path, "--timing-cache", cache)
    assert "stays as it is" in done.stdout
    assert cache.read_bytes() == b"of another GPU"
    cache.unlink()
    assert built(made, "8.6.1", tmp_path, "--timing-cache", cache).returncode == 0
    assert cache.read_bytes()


def built(made, version, folder, *options):
    script = folder / "build_engine.py"
    script.write_text(render(made)["build_engine.py"], encoding="utf-8")
    paths = os.pathsep.join(map(str, (ROOT / "tests" / "fake_tensorrt", ROOT, ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": paths, "HALFWISE_FAKE_TENSORRT": version}
    command = [sys.executable, script, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("file", ["build_engine.py", "constrain.py"])
def test_it_reads_layers_as_the_worker_does(file):
    text = (polygraphy.render if file == "constrain.py" else render)(recipe())[file]
    made: dict[str, Any] = {"__name__": "recipe", "__file__": file}
    exec(compile(text, file, "exec"), made)  # noqa: S102 - what a user would run
    assert frozenset(made["NEVER_CONSTRAINED"]) == NEVER_CONSTRAINED
    for metadata, nodes in METADATA:
        layer = SimpleNamespace(metadata=metadata)
        assert made["layer_nodes"](layer) == layer_nodes(layer) == nodes
    assert made["layer_nodes"](SimpleNamespace(name="conv")) == ["conv"]


def test_no_low_format():
    assert data(render(recipe(low=None))["build_engine.py"])["low"] is None
