"""What runtimes compute inside, as probes find it."""

import json

import pytest

from halfwise.emulation.runner import OnnxRuntime, running
from halfwise.errors import UsageError
from halfwise.options.options import understand
from halfwise.records import replace
from halfwise.targets.profiles import PROBES, lowest_sums_of, probe, profiles, store
from halfwise.targets.runners import runners_of
from halfwise.tensorrt.workers import configuration

SHIPPED = profiles()


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_onnx_runtime_on_a_cpu_is_as_fp32():
    facts = probe(OnnxRuntime()).facts
    asked = [name for name, one in PROBES.items() if one.about != "fused" and one.low == "float16"]
    assert len(asked) == 24
    assert all(facts[name] for name in asked)


@pytest.mark.usefixtures("on_webgpu")
def test_webgpu_sums_in_fp16_keeps_what_is_fp32_and_fuses_norms():
    runners = runners_of(["webgpu"], "SM86")
    with running(runners):
        for runner in runners:
            found = probe(runner)
            assert found.facts == SHIPPED[runner.name].facts
            assert found.sums == "fp16"
            assert told(found, "inside") == {False}
            assert told(found, "kept") == {True, None}
            assert found.facts["kept product between BF16"] is None
            assert found.facts["fused norm"] is (runner.name == "WebGPU")
            assert found.facts["subnormals"]


def told(profile, about):
    return {profile.facts[name] for name, one in PROBES.items() if one.about == about}


FOLDED = ("", ", transposed", " between BF16")
CONVERTED = ("ReduceL2", "Erf", "LayerNormalization", "RMSNormalization", "GroupNormalization")


@pytest.mark.usefixtures("in_rtx")
def test_rtx_tells_what_its_kernels_hold_and_nothing_that_only_a_gpu_shows():
    (runner,) = runners_of(["rtx"], "SM86")
    with running([runner]):
        found = probe(runner)
    facts = found.facts
    assert facts == SHIPPED[runner.name].facts
    inside = [name for name, one in PROBES.items() if one.about == "inside"]
    assert [n for n in inside if facts[n]] == [f"{op} in FP32" for op in CONVERTED]
    assert facts["written-out norm in FP32"] is facts["ReduceMean in FP32"] is False
    unknown = ("MatMul", "Gemm", "Conv", "AveragePool", "attention")
    assert [n for n in facts if facts[n] is None] == [
        *(f"{op} in FP32" for op in unknown),
        "subnormals",
    ]
    # What is listed as FP16 says nothing about the format of sums.
    assert found.sums == "fp32"
    folded = [name for name, one in PROBES.items() if one.about == "kept" and not facts[name]]
    assert folded == [*(f"kept product{how}" for how in FOLDED), "kept convolution"]
    apart = [name for name, one in PROBES.items() if one.about == "fused" and not facts[name]]
    assert apart == [
        "fused attention, scores in FP32",
        "fused INT8 convolution and quantisation",
    ]


def test_the_emulation_sums_as_the_profile_says():
    assert understand("x.npz", {"target": "webgpu"}).settings.accumulate == "fp16"
    assert understand("x.npz", {"target": "rtx"}).settings.accumulate == "fp32"
    asked = {"target": ["webgpu"], "accumulate": "fp32"}
    assert understand("x.npz", asked).settings.accumulate == "fp32"


def test_the_users_own_profile_replaces_that_of_halfwise():
    runners = runners_of(["webgpu"], "SM86")
    wide = {n: replace(p, facts=dict.fromkeys(p.facts, True)) for n, p in SHIPPED.items()}
    store({"WebGPU": wide["WebGPU"]})
    assert lowest_sums_of(runners) == "fp16"
    path = store(wide)
    assert lowest_sums_of(runners) == "fp32"
    assert json.loads(path.read_bytes()).keys() == SHIPPED.keys()


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"WebGPU": {"version": "1", "date": "", "facts": {}}}']
)
def test_a_profile_that_cannot_be_read(content):
    path = configuration().with_name("profiles.json")
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be read"):
        profiles()
