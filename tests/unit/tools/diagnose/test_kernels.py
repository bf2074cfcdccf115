import threading
from math import inf, log10

import numpy as np
import pytest
from onnx import TensorProto, helper

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import ModelRunner
from halfwise.errors import CaseError
from halfwise.graph.loading import network_from_proto, normalise
from halfwise.metrics.difference import relative_rms
from halfwise.progress import Silent, offered
from halfwise.records import BuildConfig, BuildOutcome, NodeName
from halfwise.reporting.remarks import steps_told
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tools.diagnose import kernels
from halfwise.tools.diagnose.kernels import cut, decibels, fp32_engine, line, low_engine, symptom_of
from tests import control
from tests.control import BOOL, MATRIX
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Region, Wrong
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA, network


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
    assert found.regions == (("b",),)
    assert found.snr_db[0] == pytest.approx(20 * log10(1 / 0.3), abs=0.1)
    assert found.rest_db > found.limit_db
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
    assert found.regions == (nodes,)
    assert found.explained
    assert found.builds <= 2 + 2 * np.ceil(np.log2(40)) + 1
    assert "kernel or compiler fault" in rung.cause


def test_nan(subject):
    rung = fp32_engine(subject(fake={"wrong": [Wrong(nodes=("join",), do="nan")]}))
    assert rung.nodes == ("join",)
    assert told(rung).snr_db == (-inf,)


def test_two_faults_are_two_regions(subject):
    wrong = [Wrong(nodes=("m5",), size=0.5), Wrong(nodes=("m30", "m31"), size=0.5)]
    found = told(fp32_engine(subject(model=chain(), fake={"wrong": wrong})))
    assert found.regions == (("m5",), ("m30", "m31"))
    assert found.explained


def test_builds_are_limited_and_what_is_known_by_then_is_told(subject):
    wrong = [Wrong(nodes=(f"m{i}",), size=0.5) for i in (3, 17, 25, 33)]
    rung = fp32_engine(subject(model=chain(), fake={"wrong": wrong}))
    found = told(rung)
    assert found.builds == found.most_builds == 25
    assert set(rung.nodes) < {"m3", "m17", "m25", "m33"}
    assert rung.nodes
    assert found.explained is False
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
    assert (told(rung).regions, told(rung).everywhere, rung.nodes) == ((), True, ())
    assert "it may be the driver, the GPU or the installation" in rung.cause


def test_roundings_that_a_part_amplifies_are_no_fault(subject):
    """The mean of what has none: nothing but roundings, so any error is as large as the result."""
    found = told(fp32_engine(subject(fake={"wrong": [Wrong(nodes=("y",), size=0.5)]})))
    assert found.regions == (("y",),)


def test_a_build_that_takes_too_long_tells_nothing_and_the_search_goes_on(subject, monkeypatch):
    monkeypatch.setattr(kernels, "LEAST_SECONDS", 2.0)
    monkeypatch.setattr(kernels, "LONGER", 0.0)
    fake = {"wrong": [Wrong(nodes=("b",), size=0.5)], "faults": [Fault("build", "hang", on=(3,))]}
    rung = fp32_engine(subject(fake=fake))
    assert (told(rung).late, told(rung).build_seconds) == (1, 2.0)
    assert "b" in rung.nodes
    assert "1 build took longer than 2 s and showed nothing." in {s.text for s in rung.evidence}


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


def piece(whole, sample, *names):
    """Cut a part out; it loads, and gives what the whole model has there."""
    right = ModelRunner(whole.model, Samples(("s",), lambda _: sample))

    def values(names):
        return {**sample, **next(right.get(list(names)))}

    made = cut(whole, frozenset(map(NodeName, names)), values)
    if made is None:
        return None
    found = Session(normalise(made.model.clone(), path=None, sha256="").model).run(made.feed)
    assert found.keys() == set(made.outputs)
    for name, array in found.items():
        assert relative_rms(values([name])[name], array) < 1e-5, name
    return made


def test_a_part_gives_what_it_does_not_read_itself():
    made = piece(network(), X, "b", "centre")
    assert made.outputs == ("centre_out",)


def test_the_rest_of_a_model_takes_what_is_left_out_and_gives_what_that_read():
    made = piece(network(), X, *(set(line(network())) - {"centre"}))
    assert made.outputs == ("mean_out", "y_out")
    assert made.feed.keys() == {"x", "centre_out::given"}


def test_integers_from_outside_are_constants():
    s = Sketch()
    x = s.input("x", ["N", 2])
    shape = s.op("Shape", x, name="shape")
    twice = s.op("Concat", s.op("Tanh", x, name="tanh"), x, name="twice", axis=0)
    best = s.op("ArgMax", twice, name="best", axis=0, keepdims=0)
    picked = s.op("Gather", twice, best, name="picked", axis=0)
    y = s.op("Mul", picked, s.op("Cast", shape, name="cast", to=TensorProto.FLOAT), name="y")
    whole, sample = s.network(y), {"x": f32(np.arange(4).reshape(2, 2))}
    assert piece(whole, sample, "picked").feed.keys() == {"twice_out::given"}
    # A part that gives no floats shows nothing.
    assert piece(whole, sample, "best") is None


def test_bodies_go_with_their_node():
    s = Sketch()
    x, flag = s.input("x", [2, 2]), s.input("flag", [], BOOL)
    outer = s.op("Tanh", x, name="outer")
    bodies = {
        branch: control.graph(
            branch, [helper.make_node(op, [outer], [f"{branch}_y"])], (), [(f"{branch}_y", MATRIX)]
        )
        for branch, op in (("then_branch", "Exp"), ("else_branch", "Abs"))
    }
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **bodies))
    whole = s.network(s.op("Neg", "chosen", name="neg"))
    made = piece(whole, {"x": f32(np.ones((2, 2))), "flag": np.array(True)}, "choose")
    assert "outer_out::given" in made.feed


def test_what_is_no_tensor_cannot_be_given():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], "make"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], "join", axis=0),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    whole, sample = network_from_proto(proto), {"x": f32([1, 2])}
    with pytest.raises(CaseError, match="s is not a tensor"):
        piece(whole, sample, "join")
    assert piece(whole, sample, "make", "join").outputs == ("y",)
