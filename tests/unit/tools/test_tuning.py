"""`export --as tuning`, run by a stand-in that reads its words as trtexec 11.1 does."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

from halfwise import api
from halfwise.errors import CaseError, UsageError
from tests import models
from tests.unit.graph.sketch import Sketch

TRTEXEC = '''#!{python}
"""Computes FP32 where trtexec has an engine; "error" is added to every output."""
import json, os, sys
import numpy as np, onnxruntime
assert not any(w in sys.argv for w in ("--skipInference", "--stronglyTyped"))
if sys.argv[1:] == ["--helpBuildRoute"]:
    print("&&&& RUNNING TensorRT.trtexec [TensorRT v110100] # trtexec --helpBuildRoute")
    values = ("-a=[on|off]", "-b:c=[0|1|2]", "-d=int32_t", "-e=[1|...|8]", "-f=[on]")
    options = [dict(option=v.split("=")[0], allowed_values=v, default_value="on") for v in values]
    print(json.dumps(dict(tuner_version="2", tuner_options=options), indent=2))
    sys.exit()
given, pairs = {{}}, [{{}}]
for word in sys.argv[1:]:
    name, _, value = word.partition("=")
    if name == "--refPair" and int(value):
        pairs.append({{}})
    if name in ("--loadInputs", "--loadRefOutputs"):
        items = [item.rpartition(":")[::2] for item in value.split(",")]
        pairs[-1][name] = {{n.strip("'"): path for n, path in items}}
    given[name] = value
assert len(pairs) > 1 or "--refPair" not in given
assert open(given["--tuneBuildRouteFile"]).read().split() == ["-a=[on|off]", "-b:c=[0|1|2]"]
session = onnxruntime.InferenceSession(given["--onnx"], providers=["CPUExecutionProvider"])
items = [item.rpartition(":")[::2] for item in given.get("--shapes", "").split(",") if item]
shapes = {{n.strip("'"): [int(axis) for axis in shape.split("x")] for n, shape in items}}
types = {{"tensor(float)": "f4", "tensor(float16)": "f2", "tensor(int64)": "i8"}}
losses = []
for pair in pairs:
    feed = {{}}
    for i in session.get_inputs():
        array = np.fromfile(pair["--loadInputs"][i.name], types[i.type])
        # As trtexec: what is static takes none.
        static = all(isinstance(axis, int) for axis in i.shape)
        assert static != (i.name in shapes)
        feed[i.name] = array.reshape(i.shape if static else shapes[i.name])
    for o, out in zip(session.get_outputs(), session.run(None, feed)):
        if o.name in pair["--loadRefOutputs"]:
            ref = np.fromfile(pair["--loadRefOutputs"][o.name], types[o.type]).astype(float)
            error = out.ravel() + float(os.environ.get("ERROR", 0)) - ref
            kind = given["--accuracyAlgorithm"]
            losses.append(np.abs(error).max() if kind == "lInf" else np.square(error).mean())
print(len(pairs), "pairs")
sys.exit(any(loss >= float(given["--accuracyThreshold"]) for loss in losses))
'''


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fixed")
    ill = models.conv_chain()
    onnx.save(ill.proto, folder / "user.onnx")
    ((name, array),) = ill.inputs.items()
    np.savez(folder / "data.npz", allow_pickle=False, **{name: array})
    api.fix(folder / "user.onnx", str(folder / "data.npz"), out=folder / "run")
    return folder


def tune(folder, **environment):
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    (bin_ / "trtexec").write_text(TRTEXEC.format(python=sys.executable))
    (bin_ / "trtexec").chmod(0o755)
    path = os.pathsep.join((str(bin_), os.environ["PATH"]))
    command = [folder / "tune_engine.sh"]
    environment = {**os.environ, "PATH": path, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def exported(run, folder, data, **options):
    return api.export(run, "tuning", out=folder, inputs=str(data), **options)


def test_samples_references_and_the_limit_are_handed_over(fixed, tmp_path):
    made = exported(fixed / "run", tmp_path, fixed / "data.npz")
    assert made.recipe.tensorrt == "11.4"
    words = made.texts["tune_engine.sh"].split()
    limit = float(next(w for w in words if "accuracyThreshold" in w).partition("=")[2])
    done = tune(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["8", "pairs"]
    # A tenth of the limit is left for what the plan itself is off.
    assert tune(tmp_path, ERROR=str(0.9 * limit)).returncode == 0
    assert tune(tmp_path, ERROR=str(1.01 * limit)).returncode == 1
    references = [
        np.fromfile(path, np.float32) for path in (tmp_path / "tuning").glob("*-out-*.bin")
    ]
    assert limit == pytest.approx(0.01 * max(np.abs(r).max() for r in references), rel=1e-6)


def save(folder, proto, **arrays):
    onnx.save(proto, folder / "m.onnx")
    data = folder / "data"
    data.mkdir()
    for name, samples in arrays.items():
        for number, array in enumerate(samples):
            np.savez(data / f"{number}.npz", allow_pickle=False, **{name: array})
    return data


def varied(tmp_path):
    """A model with two outputs of other scales and an integer one; three samples of two shapes."""
    s = Sketch()
    x = s.input("x:0", [1, "N"])
    s.op("Mul", x, 100.0, name="big")
    s.op("Tanh", x, name="small")
    s.op("ArgMax", x, name="place", axis=1)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1, n)).astype(np.float32) for n in (2, 3, 2)]
    data = save(tmp_path, s.proto("big_out", "small_out", "place_out"), **{"x:0": arrays})
    api.fix(tmp_path / "m.onnx", str(data), out=tmp_path / "run")
    return data


def test_what_is_left_out_is_told(tmp_path):
    data = varied(tmp_path)
    made = exported(tmp_path / "run", tmp_path / "out", data, trt_version="11.1")
    text = made.texts["tune_engine.sh"]
    assert "1 sample has other shapes" in text
    assert "one limit for all outputs: the smallest of big_out" in text
    assert "only floats: place_out" in text
    done = tune(tmp_path / "out")
    assert (done.returncode, done.stdout.split()) == (0, ["2", "pairs"]), done.stderr
    with pytest.raises(UsageError, match="exists"):
        exported(tmp_path / "run", tmp_path / "out", data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trt_version": "10.16"}, "cannot tune build routes; 11.1 and later can"),
        ({"trt_version": "12"}, "not a known version of TensorRT"),
        ({"inputs": None}, "needs real inputs"),
        ({"out": None}, "needs real inputs"),
        ({"typing": "weak"}, "has no weak typing"),
    ],
)
def test_what_cannot_be_tuned(fixed, tmp_path, options, message):
    words = {"out": tmp_path / "out", "inputs": str(fixed / "data.npz")} | options
    with pytest.raises(UsageError, match=message):
        api.export(fixed / "run", "tuning", **words)
    assert not (tmp_path / "out").exists()


def test_inputs_are_for_tuning_alone(fixed):
    with pytest.raises(UsageError, match="not apply to a recipe as json"):
        api.export(fixed / "run", "json", inputs="x.npz")


def test_inputs_outside_the_profile(fixed, tmp_path):
    data = np.load(fixed / "data.npz")
    name = data.files[0]
    with pytest.raises(CaseError):
        exported(
            fixed / "run",
            tmp_path,
            fixed / "data.npz",
            max_shapes=[f"{name}:1x1x1x1"],
            min_shapes=[f"{name}:1x1x1x1"],
            opt_shapes=[f"{name}:1x1x1x1"],
        )
