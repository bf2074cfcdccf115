import numpy as np
import pytest

from halfwise.case import EngineSettings
from halfwise.declarations import EngineOptions, spelt
from halfwise.errors import CaseError, UsageError
from halfwise.options.engines import engine_target, understand_target
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.records import TensorName
from tests.unit.graph.sketch import Sketch

TARGET = {"target": "tensorrt", "trt_command": "python3"}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No halfwise.toml and no environment of the user's decides here."""
    monkeypatch.chdir(tmp_path)
    for name in ("HALFWISE_TRT_COMMAND",):
        monkeypatch.delenv(name, raising=False)


def test_without_a_target_there_is_none():
    assert understand_target({}) is None
    assert understand_target({"rel_max": 0.1}) is None


def test_without_further_options_the_defaults_hold():
    target = understand_target(TARGET)
    assert target is not None
    assert target.settings == EngineSettings()
    assert target.shapes == ((), (), ())
    assert target.workers[0].command == ("python3",)


def test_options_reach_those_who_need_them():
    target = engine_target(
        {
            **TARGET,
            "typing": "weak",
            "workspace": "2G",
            "optimization_level": 0,
            "tactic_sources": "cublas, cudnn",
            "plugin": "p.so",
            "builds": 1,
            "max_builds": 2,
            "build_timeout": 60.0,
            "run_timeout": 5,
            "tf32": True,
        }
    )
    assert target.settings == EngineSettings(
        typing="weak",
        workspace_bytes=2 << 30,
        optimization_level=0,
        tactic_sources=("CUBLAS", "CUDNN"),
        plugins=("p.so",),
        builds=1,
        max_builds=2,
        build_timeout=60.0,
        run_timeout=5,
        tf32=True,
    )


@pytest.mark.parametrize(
    "name", sorted(EngineOptions.__annotations__.keys() - {"target", "run_timeout"})
)
def test_every_option_needs_a_target(name):
    value = {"typing": "weak"}.get(name, 1)
    with pytest.raises(UsageError, match="does not apply without --target") as told:
        understand("x.npz", {name: value})
    assert f"{spelt(name)} does not apply" in told.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", "openvino"),
        ("typing", "loose"),
        ("builds", 0),
        ("max_builds", float("nan")),
        ("optimization_level", 6),
        ("build_timeout", float("inf")),
        ("run_timeout", -1),
        ("workspace", "much"),
    ],
)
def test_values_outside_their_domain(name, value):
    with pytest.raises(UsageError, match=spelt(name)):
        understand_target({**TARGET, name: value})


def test_profiles_of_the_options():
    case = case_of_any_batch()
    shapes = {"min_shapes": "x:1x4", "opt_shapes": ("x:2x4",), "max_shapes": ["x:8x4"]}
    (profile,) = engine_target(TARGET | shapes).profiled(case).profiles
    assert profile.shapes[TensorName("x")].max == (8, 4)
    assert engine_target(TARGET).profiled(case).profiles == ()
    with pytest.raises(CaseError):
        engine_target(TARGET | shapes | {"min_shapes": "x:4x4"}).profiled(case)


def case_of_any_batch():
    s = Sketch()
    s.op("Relu", s.input("x", ["n", 4]), name="relu")
    request = understand({"x": np.ones((4, 2, 4), np.float32)}, {})
    return load_case(s.proto("relu_out"), request.data, request.criterion)
