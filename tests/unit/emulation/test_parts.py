"""A model in parts computes what it does in one session, to the bit."""

from collections import Counter
from functools import partial

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import large
from halfwise import memory
from halfwise.case import Runtime
from halfwise.emulation import ort
from halfwise.emulation.ort import Session
from halfwise.emulation.parts import Parts
from halfwise.emulation.probe import ExtremaProbe, observable
from halfwise.emulation.switched import SWITCH_INPUT, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import RunFailed
from halfwise.formats import FP16
from halfwise.graph import protobufs
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.model import add_constant
from halfwise.graph.roles import roles_of
from halfwise.graph.weights import LARGE_TENSOR_BYTES
from tests.graphs import Drawn, graphs
from tests.unit.graph.sketch import Sketch


def limit(monkeypatch, nbytes):
    """Let the first weights stay on the device, and it take `nbytes` of others at a time."""

    def first(arrays, _):
        return {name: ort.ort_value(arrays[name]) for name in list(arrays)[: len(arrays) // 4]}

    monkeypatch.setattr(ort, "_in_place", first)
    monkeypatch.setattr(ort, "_room", lambda _: nbytes)


def equal(one, other):
    assert list(one) == list(other)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


def is_weight(value):
    constant = value.const_value
    return constant is not None and constant.dtype == ir.DataType.FLOAT and constant.nbytes > 16


@given(graphs(), st.sampled_from([32, 64, 128]))
def test_a_model_in_parts_computes_the_same(drawn: Drawn, most: int):
    model = network_from_proto(drawn.proto).model
    whole = Session(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobufs, "_is_large", is_weight)
        limit(patch, most)
        try:
            parts = Session(model)
        except RunFailed:  # a node that reads more
            return
        assert (parts.outputs, parts.output_types) == (whole.outputs, whole.output_types)
        equal(parts.run(drawn.sample), whole.run(drawn.sample))


@pytest.fixture(scope="module", params=large.KINDS)
def kind(request, tmp_path_factory):
    """A model of a kind, about 3 MB, the nodes that FP16 breaks, and a sample."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "WORDS", 200)
        folder = tmp_path_factory.mktemp(request.param)
        model, samples, broken = large.make_kind(folder, request.param, 3, width=64)
    with np.load(samples) as arrays:
        return load_network(model), broken, {name: arrays[name][0] for name in arrays.files}


MOST = 900_000
"""A stretch of a switched model brings up to that; the models have 3 MB."""


def test_extrema_are_found_in_parts(kind, monkeypatch):
    network, _, sample = kind
    load = partial(ExtremaProbe, network.model, observable(network.model))
    whole = load().run(sample)
    limit(monkeypatch, MOST)
    probe = load()
    assert probe._session is not None
    assert isinstance(probe._session._session, Parts)
    equal(probe.run(sample)[0], whole[0])
    assert probe.run(sample)[1] == whole[1]


def test_precision_switches_inside_parts(kind, monkeypatch):
    network, broken, sample = kind
    switched = emulate_switched(network, roles_of(network), FP16)
    nodes = frozenset(switched.switches.nodes)
    assignments = [switched.switches.switch(held) for held in (frozenset(), broken, nodes)]

    def results():
        session = Session(switched.model)
        return session, [session.run({**sample, SWITCH_INPUT: one}) for one in assignments]

    _, whole = results()
    limit(monkeypatch, MOST)
    session, parts = results()
    assert len(session._session._parts) > 3
    for one, other in zip(parts, whole, strict=True):
        equal(one, other)


def test_low_weights_are_widened_in_the_part_that_reads_them(kind, monkeypatch):
    network, _, sample = kind
    model = emulate_typed(low(network), late=True)
    whole = Session(model).run(sample)
    limit(monkeypatch, MOST // 2)
    session = Session(model)
    crossing = {name for part in session._session._parts for name in part.outputs}
    assert not [name for name in crossing if "::weight" in name]
    equal(session.run(sample), whole)


def low(network):
    """Return the model with its large weights stored in FP16."""
    model = network.copy()
    for value in [*model.graph.initializers.values()]:
        array = value.const_value.numpy()
        if array.dtype == np.float32 and array.nbytes > LARGE_TENSOR_BYTES:
            stored = add_constant(model.graph, f"{value.name}::low", array.astype(np.float16))
            value.replace_all_uses_with(stored)
            del model.graph.initializers[value.name]
    return model


@pytest.fixture
def chain():
    """Three products, each with a weight of 4,096 bytes; two outputs."""
    s = Sketch()
    x = s.input("x", [2, 32])
    weights = np.random.default_rng(0).standard_normal((3, 32, 32)).astype(np.float32)
    first, second, third = weights
    middle = s.op("MatMul", s.op("MatMul", x, first, name="m0"), second, name="m1")
    return network_from_proto(s.proto(middle, s.op("MatMul", middle, third, name="m2"))).model


def test_only_the_parts_that_an_output_needs_run(chain, monkeypatch):
    whole, sample = Session(chain), {"x": np.ones((2, 32), np.float32)}
    limit(monkeypatch, 5_000)
    session = Session(chain)
    _, second, third = session._session._parts
    monkeypatch.setattr(third.session, "run", None)
    equal(session.run(sample, second.outputs), whole.run(sample, second.outputs))


def test_a_model_that_gives_out_a_weight_stays_whole(monkeypatch):
    s = Sketch()
    weight = s.constant(np.ones((32, 32), np.float32))
    model = s.network(s.op("MatMul", s.input("x", [2, 32]), weight), weight).model
    limit(monkeypatch, 2_000)
    results = Session(model).run({"x": np.ones((2, 32), np.float32)})
    np.testing.assert_array_equal(results[weight], np.ones((32, 32)))


def test_what_cannot_be_divided_and_does_not_fit_is_refused(chain, monkeypatch):
    limit(monkeypatch, 2_000)
    with pytest.raises(RunFailed, match=r"'m0' cannot be divided further and reads 4 KiB"):
        Session(chain)


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that makes the CPU a GPU with so much memory.

    It returns a list, to which the values of run options are appended from then on.
    """
    from_numpy, asked = onnxruntime.OrtValue.ortvalue_from_numpy, []

    class Options(onnxruntime.RunOptions):  # type: ignore[misc]
        def add_run_config_entry(self, _, value):
            asked.append(value)

    def gpu(nbytes):
        monkeypatch.setattr(
            onnxruntime.OrtValue, "ortvalue_from_numpy", lambda array, *_: from_numpy(array)
        )
        monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
        monkeypatch.setattr(onnxruntime, "RunOptions", Options)
        monkeypatch.setitem(ort._PROVIDERS, "cuda", "CPUExecutionProvider")
        monkeypatch.setitem(ort._CHAINS, "cuda", ort._CHAINS["cpu"])
        monkeypatch.setattr(ort, "_SHRINKS", {})
        monkeypatch.setattr(ort, "_on_gpu", Counter())
        monkeypatch.setattr(memory, "of_gpu", lambda: nbytes)
        return asked

    return gpu


def test_a_model_beyond_the_memory_of_a_gpu_runs_in_parts(kind, gpu):
    network, _, sample = kind
    whole = Session(network.model).run(sample)
    asked = gpu(2_000_000)
    session = Session(network.copy(), runtime=Runtime("cuda"))
    assert len(session._session._parts) > 2
    assert 500_000 < ort._on_gpu["held"] <= 1_000_000
    equal(session.run(sample), whole)
    assert asked[-1] == "gpu:0"


def test_a_model_that_fits_a_gpu_stays_whole(kind, gpu):
    network, _, sample = kind
    whole = Session(network.model).run(sample)
    gpu(20_000_000)
    session = Session(network.copy(), runtime=Runtime("cuda"))
    assert not isinstance(session._session, Parts)
    equal(session.run(sample), whole)


def test_a_gpu_holds_weights_up_to_its_share(gpu):
    gpu(10 * 1024)
    arrays = [np.ones(1024, np.float32), np.ones(256, np.float32), np.ones(1, np.float32)]
    first, second, third = map(ort.uploaded, arrays)
    assert first is not None
    assert second is not None
    assert third is None
    del arrays[0], first
    assert ort.uploaded(np.ones(1024, np.float32)) is not None
