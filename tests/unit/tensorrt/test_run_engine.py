"""The C++ program that runs an engine, with the runtime of `tensorrt_declarations`: no GPU."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from halfwise.tensorrt.recipe import cpp
from tests.unit.tensorrt.compiling import (
    DECLARATIONS,
    compile_,
    declared,
    needs_compiler,
)
from tests.unit.tensorrt.recipes import recipe

pytestmark = needs_compiler

FLOAT, HALF, INT32, BOOL, BF16, INT64 = 0, 1, 3, 4, 7, 8
ENGINE = f"""input x {FLOAT} -1 3
host sizes {INT32} 2
profile 0 x 1 3 4 3
profile 1 x 5 3 8 3
double twice x
positives a/b x
sized zeros sizes
"""


@pytest.fixture(scope="module", params=["8.6", "11.4"])
def program(request, tmp_path_factory):
    """The program, compiled as for one version; its engine is `e`."""
    folder = tmp_path_factory.mktemp("program")
    for name, text in cpp(recipe(engine="e")).items():
        (folder / name).write_text(text, encoding="utf-8")
    made, stub = folder / "run_engine", DECLARATIONS / "runtime.cpp"
    done = compile_(folder / "run_engine.cpp", stub, "-o", made, "-ldl", *declared(request.param))
    assert done.returncode == 0, done.stderr
    return made, request.param


@dataclass(frozen=True)
class Started:
    program: Path
    version: str
    folder: Path

    def __call__(self, *words, **environment):
        return subprocess.run(
            [self.program, "out", *map(str, words)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def run(program, tmp_path):
    (tmp_path / "e").write_text(ENGINE)
    (tmp_path / "out").mkdir()
    made, version = program
    return Started(made, version, tmp_path)


def saved(folder, **arrays):
    words = []
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
        words += ["--npy", name, f"{name}.npy"]
    return words


def given(folder, rows=5, sizes=(2, 4)):
    x = np.linspace(-1, 1, 3 * rows, dtype=np.float32).reshape(rows, 3)
    return x, saved(folder, x=x, sizes=np.array(sizes, np.int64))


@pytest.mark.parametrize("rows", [1, 4, 5, 8])
def test_shapes_are_those_of_the_files(run, rows):
    x, words = given(run.folder, rows)
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert f"output twice <f4 {rows}x3 out/twice.npy" in done.stdout
    out = {path.name: np.load(path) for path in (run.folder / "out").iterdir()}
    np.testing.assert_array_equal(out["twice.npy"], 2 * x)
    np.testing.assert_array_equal(out["a%2Fb.npy"], x[x > 0])
    np.testing.assert_array_equal(out["zeros.npy"], np.zeros((2, 4), np.float32))


def test_raw_files_and_another_engine(run):
    (run.folder / "other").write_text(f"input x {HALF} -1 2\nprofile 0 x 1 2 4 2\ncopy y x\n")
    (run.folder / "x.bin").write_bytes(np.array([[1, 2], [3, 4]], np.float16).tobytes())
    done = run("--engine", "other", "--raw", "x", "2x2", "x.bin")
    assert done.returncode == 0, done.stderr
    y = np.load(run.folder / "out" / "y.npy")
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, [[1, 2], [3, 4]])


def test_scalars_empty_arrays_and_booleans(run):
    (run.folder / "other").write_text(
        f"input x {BOOL}\ninput y {FLOAT} -1\nprofile 0 y 0 2\ncopy a x\ndouble b y\n"
    )
    words = saved(run.folder, x=np.array(True), y=np.zeros(0, np.float32))
    done = run("--engine", "other", *words)
    assert done.returncode == 0, done.stderr
    found = [np.load(run.folder / "out" / name) for name in ("a.npy", "b.npy")]
    assert [(a.shape, a.dtype.str) for a in found] == [((), "|b1"), ((0,), "<f4")]
    assert found[0]


def test_types_that_a_version_has_or_lacks(run):
    (run.folder / "other").write_text(f"input x {BF16} 2\ninput n {INT64} 2\ncopy a x\ncopy b n\n")
    (run.folder / "x.bin").write_bytes(np.array([0x3FC0, 0xC000], np.uint16).tobytes())
    words = ["--raw", "x", "2", "x.bin", *saved(run.folder, n=np.array([1 << 40, -1]))]
    done = run("--engine", "other", *words)
    if run.version == "8.6":
        assert "of a type that .npy files cannot hold" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    a, b = (np.load(run.folder / "out" / name) for name in ("a.npy", "b.npy"))
    assert (a.dtype.str, a.tolist()) == ("<f4", [1.5, -2.0])
    assert (b.dtype.str, b.tolist()) == ("<i8", [1 << 40, -1])


def wrong(folder):
    """Yield what is wrong with words, how, and what is said of it."""
    x, right = given(folder)
    sizes = right[3:]
    yield right[:3], "input sizes is missing"
    yield [*right, *saved(folder, more=x)], "the engine has no input more"
    yield [*saved(folder, x=x.astype(np.float64)), *sizes], "x is <f8 in its file and <f4"
    yield [*saved(folder, x=np.asfortranarray(x)), *sizes], "is in Fortran order"
    yield [*saved(folder, x=np.zeros((9, 3), np.float32)), *sizes], "profile 1: x is 9x3"
    yield [*saved(folder, x=x[:, :2]), *sizes], "x is 5x2, it takes 1x3 to 4x3"
    np.save(folder / "wide.npy", np.array([1 << 40, 1]))
    yield [*right[:3], "--npy", "sizes", "wide.npy"], "1099511627776 is beyond INT32"
    (folder / "short.bin").write_bytes(bytes(59))
    yield ["--raw", "x", "5x3", "short.bin", *sizes], "has 60 bytes; its file has 59"
    yield ["--raw", "x", "5x-3", "short.bin", *sizes], "not a shape: 5x-3"
    yield ["--raw", "x", "9999999999x9999999999", "short.bin", *sizes], "a shape is too large"
    yield ["--npy", "x", "short.bin", *sizes], "short.bin is not an .npy file"
    yield ["--npy", "x", "nowhere.npy", *sizes], "cannot read nowhere.npy"
    yield ["--npy", "x"], "run_engine FOLDER"
    yield ["--npz", "x", "x.npy"], "there is no option --npz"
    yield [*right, "--engine", "out/none"], "cannot read out/none"
    yield [*right, "--engine", "empty"], "is not an engine for this TensorRT and GPU"


def test_what_is_wrong_is_said_and_nothing_is_written(run):
    (run.folder / "empty").write_text("")
    for words, message in wrong(run.folder):
        done = run(*words)
        assert done.returncode == 1, words
        assert done.stderr.startswith("error: "), done.stderr
        assert message in done.stderr
        assert not list((run.folder / "out").iterdir())


def test_no_memory_and_no_place_to_write(run):
    _, words = given(run.folder)
    assert "no memory on the GPU for input x" in run(*words, NO_MEMORY="1").stderr
    (run.folder / "out").rmdir()
    assert "cannot write out/" in run(*words).stderr
