import threading
from math import inf, log10

import numpy as np
import pytest

from halfwise.progress import Silent, offered
from halfwise.records import BuildConfig, BuildOutcome
from halfwise.reporting.remarks import steps_told
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tools import transplants
from halfwise.tools.diagnose.command import fp32_engine, low_engine
from halfwise.tools.transplants import decibels, symptom_of
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Region, Wrong
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA


def told(rung):
    """What a rung tells of engines."""
    assert rung.engine is not None
    return rung.engine


def test_without_a_target(subject):
    assert {fp32_engine(subject()).how, low_engine(subject()).how} == {"skipped"}


def test_engines_that_are_right(subject):
    made = subject(fake={})
    assert fp32_engine(made).cause == "The engine (FP32, TF32 off) is right."
    assert low_engine(made).cause == "The engine (all FP16) is right."


def test_a_kernel_that_is_wrong_in_fp32(subject):
    made = subject(fake={"broken": {"b": 1.3}})
    rung = fp32_engine(made)
    assert rung.passed is False
    assert rung.how == "measured"
    assert rung.nodes == ("b",)
    assert "not precision: a kernel or compiler fault at b." in rung.cause
    found = told(rung)
    assert found.explained
    assert found.region == ("b",)
    assert found.snr_db == pytest.approx(20 * log10(1 / 0.3), abs=0.1)
    assert steps_told(rung.advice)[0].startswith("Try another TensorRT version")


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_a_low_kernel_that_is_wrong_although_its_emulation_is_right(subject, version):
    made = subject(fake={"version": version, "lossy": {"b": 1.5}})
    assert fp32_engine(made).passed
    rung = low_engine(made)
    assert rung.passed is False
    assert rung.rung == 7
    assert rung.nodes == ("b",)
    assert "although the emulation of the same plan is right." in rung.cause


def test_a_builder_that_never_builds_is_told_as_what_it_is(subject):
    rung = fp32_engine(subject(fake={"faults": [Fault("build", "memory")]}))
    assert rung.passed is False
    assert "cannot be built" in rung.cause
    assert told(rung).symptom == "build"


def test_what_the_parser_refuses_is_no_fault_of_a_kernel(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    odd = sketch.op("Hardmax", sketch.op("Tanh", x, name="first"), name="odd", axis=1)
    network = sketch.network(sketch.op("Neg", odd, name="last"))
    rung = fp32_engine(subject(model=network, fake={"version": "8.6.1"}))
    assert rung.passed is False
    assert rung.nodes == ("odd",)
    assert "cannot parse the model at node odd" in rung.cause
    assert rung.engine is None


def test_an_engine_that_never_runs_is_told_as_what_it_is(subject):
    rung = fp32_engine(subject(fake={"faults": [Fault("run", "segv")]}))
    assert rung.passed is False
    assert "cannot be run" in rung.cause
    assert told(rung).symptom == "run"


def test_a_lost_worker_is_no_answer(subject):
    with pytest.raises(EngineFailed):
        fp32_engine(subject(fake={"faults": [Fault("build", "disconnect")]}))


X = {"x": DATA[0]}


def chain(count=40):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    for i in range(count):
        x = sketch.op("Mul", x, f32(1.0 + i / 99), name=f"m{i}")
    return sketch.network(x)


def test_decibels():
    assert (decibels(0.0), decibels(inf)) == (inf, -inf)
    assert decibels(0.1) == pytest.approx(20)


@pytest.mark.parametrize("nodes", [("m0",), ("m9", "m10", "m11"), ("m39",)])
def test_a_fusion_is_its_region_in_few_builds(subject, nodes):
    rung = fp32_engine(
        subject(model=chain(), fake={"wrong": [Wrong(nodes=nodes, unless="between", size=0.5)]})
    )
    assert rung.nodes == nodes
    found = told(rung)
    assert found.explained
    assert found.builds <= 4 + 4 * np.log2(40)
    assert "kernel or compiler fault" in rung.cause


def test_nan(subject):
    rung = fp32_engine(subject(fake={"wrong": [Wrong(nodes=("join",), do="nan")]}))
    assert rung.nodes == ("join",)
    assert told(rung).snr_db == -inf


def test_of_two_faults_the_first_is_named_and_that_there_is_more(subject):
    wrong = [Wrong(nodes=("m5",), size=0.5), Wrong(nodes=("m30", "m31"), size=0.5)]
    rung = fp32_engine(subject(model=chain(), fake={"wrong": wrong}))
    assert rung.nodes == ("m5",)
    assert told(rung).explained is False
    assert any("more is wrong" in sign.text for sign in rung.evidence)


def test_a_builder_that_dies_at_a_pattern(subject):
    fault = Fault("build", "segv", region=Region(nodes=("join", "d")))
    rung = fp32_engine(subject(fake={"faults": [fault]}))
    assert {"join", "d"} <= set(rung.nodes)
    assert told(rung).symptom == "build"
    assert told(rung).explained
    assert "cannot be built: The build ended with SIGSEGV." in rung.cause


@pytest.mark.parametrize("place", ["build", "run"])
def test_no_node_is_blamed_where_everything_dies(subject, place):
    rung = fp32_engine(subject(fake={"faults": [Fault(place, "segv")]}))
    assert (told(rung).everywhere, rung.nodes) == (True, ())
    assert "it may be the driver, the GPU or the installation" in rung.cause


def test_roundings_that_a_part_amplifies_are_no_fault(subject):
    """The mean of what has none: nothing but roundings, so any error is as large as the result."""
    assert fp32_engine(subject(fake={"wrong": [Wrong(nodes=("y",), size=0.5)]})).nodes == ("y",)


def test_a_build_that_takes_too_long_tells_nothing_and_the_search_goes_on(subject, monkeypatch):
    monkeypatch.setattr(transplants, "LEAST_SECONDS", 2.0)
    monkeypatch.setattr(transplants, "LONGER", 0.0)
    fake = {"wrong": [Wrong(nodes=("b",), size=0.5)], "faults": [Fault("build", "hang", on=(3,))]}
    rung = fp32_engine(subject(fake=fake))
    assert "b" in rung.nodes


class Pressing(Silent):
    """Starts a thread at a note."""

    def __init__(self, at, then):
        self.at, self.then = at, then

    def note(self, text):
        if text.startswith(self.at):
            threading.Thread(target=self.then).start()


def test_ctrl_c_ends_the_search(subject):
    fake = {"wrong": [Wrong(nodes=("b",), size=0.5)], "faults": [Fault("build", "hang", on=(3,))]}
    with offered() as interruption:
        made = subject(fake=fake)
        made.engines.watcher = made.engines.builds.watcher = Pressing("build 3:", interruption.take)
        rung = fp32_engine(made)
    assert told(rung).interrupted
    assert told(rung).builds == 3
    assert rung.nodes == ()
    assert "Ctrl-C ended the search" in rung.cause


def test_builds_end_alike_where_status_and_errors_are():
    def ended(status, *log):
        config = BuildConfig(model_sha256="", typing="weak")
        return symptom_of(
            BuildOutcome(number=1, purpose="", status=status, config=config, seconds=1.0, log=log)
        )

    text = "[E] Error Code 10: Could not find any implementation for node {ForeignNode[%s...z]}."
    assert ended("failed", text % "a") == ended("failed", text % "b")
    assert ended("failed", text % "a") != ended("failed", "[E] Error Code 1: out of memory")
    assert ended("crashed") != ended("failed")
