"""What runtimes compute inside, as probes find it."""

import json
from dataclasses import replace

import pytest

from halfwise.emulation.runner import OnnxRuntime, running
from halfwise.errors import UsageError
from halfwise.options.options import understand
from halfwise.targets.profiles import KEPT, lowest_sums_of, probe, profiles, store
from halfwise.targets.runners import runners_of
from halfwise.tensorrt.workers import configuration

SHIPPED = profiles()


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_onnx_runtime_on_a_cpu_is_as_fp32():
    facts = probe(OnnxRuntime()).facts
    assert len(facts) == 13
    assert all(facts.values())


@pytest.mark.usefixtures("on_webgpu")
def test_webgpu_sums_in_fp16_and_keeps_what_is_fp32():
    runners = runners_of(["webgpu"], "SM86")
    with running(runners):
        for runner in runners:
            found = probe(runner)
            assert found.facts == SHIPPED[runner.name].facts
            assert found.sums == "fp16"
            assert all(found.facts[name] for name in (*KEPT, "subnormals"))


@pytest.mark.usefixtures("in_rtx")
def test_rtx_folds_a_product_unless_an_activation_follows_in_fp32():
    (runner,) = runners_of(["rtx"], "SM86")
    with running([runner]):
        found = probe(runner)
    assert found.facts == SHIPPED[runner.name].facts
    assert found.facts == {"kept product": False, "kept product and activation": True}


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


@pytest.mark.parametrize("content", ["{", "[]", '{"WebGPU": {"of": 1}}'])
def test_a_profile_that_cannot_be_read(content):
    path = configuration().with_name("profiles.json")
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be read"):
        profiles()
