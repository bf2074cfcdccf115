import json

import pytest

from halfwise import api
from halfwise.errors import BuildFailed
from halfwise.records import EngineBuild
from tests.unit.reporting.engine_runs import build
from tests.unit.reporting.test_pieces import inspection

MADE = EngineBuild(
    model="m.onnx", build=build(1, "e"), inspection=inspection(), findings=(), unmatched=()
)
LINE = ("build", "m.onnx", "-o", "e.engine")


def test_only_what_is_given_is_passed_on(call, answer):
    calls = answer("build", MADE)
    assert call(*LINE)[0] == 0
    options = calls[0][1]
    assert options.pop("watcher")
    lists = {"keep": (), "keep_op": (), "layer_precisions": ()}
    assert options == {"inputs": None, "to": None, **lists}


def test_options(call, answer):
    calls = answer("build", MADE)
    code, out, _ = call(
        *LINE, "--to", "bf16", "--keep", "a", "--keep-op", "Softmax", "--minShapes", "x:1",
        "--tf32", "--trt-worker", "orin", "--json", "--inputs", "x.npz", "--build-timeout", "5",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["model"] == "m.onnx"
    options = calls[0][1]
    expected = {
        "to": "bf16",
        "keep": ["a"],
        "keep_op": ["Softmax"],
        "min_shapes": ["x:1"],
        "tf32": True,
        "trt_worker": "orin",
        "inputs": "x.npz",
        "build_timeout": 5.0,
    }
    assert {name: options[name] for name in expected} == expected


def test_a_build_without_an_engine(call, answer):
    answer("build", BuildFailed("TensorRT builds no engine.", "a: no importer\nb: no importer"))
    code, out, err = call(*LINE)
    assert (code, out) == (5, "")
    assert err.endswith(
        "error: TensorRT builds no engine.\nhint: a: no importer\n  b: no importer\n"
    )


@pytest.mark.parametrize(
    "missing", [("build", "m.onnx"), ("build", "-o", "e"), (*LINE, "--target", "tensorrt")]
)
def test_usage(call, missing):
    assert call(*missing)[0] == 2


def test_every_option_of_building_is_there(call, answer):
    calls = answer("build", MADE)
    assert callable(api.build)
    call(
        *LINE,
        "--workspace",
        "4G",
        "--optimization-level",
        "0",
        "--plugin",
        "p.so",
        "--typing",
        "weak",
    )
    given = calls[0][1]
    assert (given["workspace"], given["optimization_level"]) == ("4G", 0)
    assert (given["plugin"], given["typing"]) == (["p.so"], "weak")
