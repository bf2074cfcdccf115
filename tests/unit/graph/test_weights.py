import gc
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from halfwise.errors import CaseError
from halfwise.formats import BF16, FP16
from halfwise.graph import weights as module
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.model import constant_array
from halfwise.graph.weights import (
    LowWeights,
    MappedTensor,
    WeightFile,
    is_large,
    map_files,
    own_weights,
    pieces,
    release_files,
    weight_bytes,
    widen_weights,
)
from tests import models
from tests.models import saved_beside
from tests.unit.graph.sketch import Sketch

FORMATS = pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)


@pytest.fixture
def network(tmp_path):
    return load_network(saved_beside(models.large_weights(), tmp_path))


@pytest.fixture
def weight(network):
    return network.graph.initializers["up_w"].const_value


def open_files() -> set[str]:
    """The temporary files that this process has open."""
    files = (os.path.realpath(file) for file in Path("/proc/self/fd").iterdir())
    return {file for file in files if file.endswith("(deleted)")}


# --- in pieces --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5, 6, 7, 12])
def test_pieces_make_up_the_array(monkeypatch, size):
    monkeypatch.setattr(module, "CHUNK", 6)
    array = np.arange(size, dtype=np.float32).reshape(1, size)
    found = list(pieces(array))
    assert all(0 < p.size <= 6 for p in found)
    np.testing.assert_array_equal(np.concatenate([np.zeros(0), *found]), array[0])
    assert all(np.shares_memory(p, array) for p in found)


# --- files ------------------------------------------------------------------------------------


def test_arrays_in_a_file_are_apart_and_aligned():
    file = WeightFile(3 * 4 + 5 * 2, arrays=2)
    first = file.take(np.dtype(np.float32), (3,))
    second = file.take(np.dtype(np.float16), (5, 1))
    first[...], second[...] = 1, 2
    np.testing.assert_array_equal(first, [1, 1, 1])
    assert (second.shape, second.ctypes.data % 64, first.ctypes.data % 64) == ((5, 1), 0, 0)


def test_a_file_has_no_name_and_goes_with_its_last_array(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = open_files()
    array = WeightFile(1 << 20).take(np.dtype(np.float32), (1 << 18,))
    array[...] = 1
    assert list(tmp_path.iterdir()) == []
    assert len(open_files() - before) == 1
    del array
    assert open_files() <= before


def test_a_full_disk_is_told_before_anything_is_written():
    with pytest.raises(CaseError, match=r"(?s)need 4\.29e9 GiB of temporary space.*TMPDIR="):
        WeightFile(1 << 62)


def test_large_files_go_where_they_may_last(monkeypatch, tmp_path):
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(module, "_LASTING", str(tmp_path))
    assert module._folder() == str(tmp_path)
    monkeypatch.setattr(module, "_LASTING", str(tmp_path / "none"))
    assert Path(module._folder()).is_dir()


# --- what is large ----------------------------------------------------------------------------


def test_only_weights_in_files_make_a_model_large(network):
    elements = 3 * 64 * 64
    assert is_large(network.model, 4 * elements - 1)
    assert not is_large(network.model, 4 * elements)
    assert not is_large(network_from_proto(models.large_weights().proto).model, 0)


def test_low_weights_count_as_what_they_were(network):
    low = LowWeights(network.model, FP16, large_from=0)
    elements = 3 * 64 * 64
    model = network.copy()
    for value in model.graph.initializers.values():
        value.const_value = low.low(value.const_value, value.name)
    assert weight_bytes(model) < weight_bytes(network.model)
    assert is_large(model, 4 * elements - 1)
    assert not is_large(model, 4 * elements)


def test_weights_leave_the_protobuf_for_a_file_where_they_are_many_else_for_memory():
    proto = models.large_weights().proto
    model = ir.serde.deserialize_model(proto)
    own_weights(model, 3 * 64 * 64 * 4)
    assert {type(v.const_value) for v in _constants(model)} == {ir.Tensor}
    own_weights(model, 3 * 64 * 64 * 4 - 1)
    moved = {v.name for v in _constants(model) if isinstance(v.const_value, MappedTensor)}
    assert moved == {"up_w", "down_w", "out_w"}
    stored = {type(v.const_value) for v in _constants(model)}
    assert stored == {MappedTensor, ir.Tensor}, "one of onnx would keep the protobuf alive"
    assert is_large(model, 0)
    assert {t.name for t in ir.serde.serialize_model(model).graph.initializer} >= moved
    for tensor in proto.graph.initializer:
        expected = onnx.numpy_helper.to_array(tensor)
        np.testing.assert_array_equal(model.graph.initializers[tensor.name].const_value, expected)


def test_nothing_of_a_protobuf_is_left_and_what_it_says_of_a_tensor_stays():
    proto = models.large_weights().proto
    proto.graph.initializer[0].doc_string = "learnt"
    proto.graph.initializer[0].metadata_props.add(key="from", value="training")
    fill = onnx.helper.make_tensor("fill", onnx.TensorProto.FLOAT, [1], [2.0])
    zeros = onnx.helper.make_node("ConstantOfShape", ["shape"], ["zeros"], "zeros", value=fill)
    proto.graph.node.append(zeros)
    model = ir.serde.deserialize_model(proto)
    own_weights(model)
    attributes = [a.value for n in model.graph.all_nodes() for a in n.attributes.values()]
    held = [*attributes, *(v.const_value for v in _constants(model))]
    assert sum(isinstance(one, ir.Tensor) for one in held) == 1 + len(proto.graph.initializer)
    assert not any(isinstance(one, ir.serde.TensorProtoTensor) for one in held)
    written = ir.serde.serialize_model(model).graph
    first = next(t for t in written.initializer if t.name == proto.graph.initializer[0].name)
    assert (first.doc_string, first.metadata_props[0].key) == ("learnt", "from")
    assert written.node[-1].attribute[0].t.float_data or written.node[-1].attribute[0].t.raw_data


def test_low_weights_are_shared_with_those_of_another_network(network):
    whole = LowWeights(network.model, FP16, large_from=0)
    model = network.copy()
    changed = model.graph.initializers["up_w"]
    file = WeightFile(4 * 64 * 64)
    array = file.take(np.dtype(np.float32), (64, 64))
    array[...] = 3.0
    changed.const_value = MappedTensor(array, dtype=ir.DataType.FLOAT, name="up_w")
    other = LowWeights(model, FP16, large_from=0, shared=whole)
    for name in ("up_w", "down_w", "out_w"):
        tensor = model.graph.initializers[name].const_value
        assert other.in_file(tensor)
        own, first = other.low(tensor, name), network.model.graph.initializers[name].const_value
        is_shared = np.shares_memory(own.numpy(), whole.low(first, name).numpy())
        assert is_shared == (name != "up_w")
        np.testing.assert_array_equal(own.numpy(), FP16.store_constant(tensor.numpy()))


def test_low_weights_of_a_large_model_are_widened_in_a_file(network):
    low = LowWeights(network.model, FP16, large_from=0)
    model = network.copy()
    for value in model.graph.initializers.values():
        value.const_value = low.low(value.const_value, value.name)
    stored = {v.name: v.const_value for v in _constants(model)}
    widen_weights(model, 3 * 64 * 64 * 4)
    assert {v.name: v.const_value for v in _constants(model)} == stored
    widen_weights(model, 3 * 64 * 64 * 4 - 1)
    for name in ("up_w", "down_w", "out_w"):
        wide = model.graph.initializers[name].const_value
        assert isinstance(wide, MappedTensor)
        assert wide.dtype == ir.DataType.FLOAT
        np.testing.assert_array_equal(wide, np.asarray(stored[name]).astype(np.float32))
    assert model.graph.initializers["scale"].const_value is stored["scale"]


def _constants(model: ir.Model) -> list[ir.Value]:
    return list(model.graph.initializers.values())


def resident(array: np.ndarray) -> int:
    """Return how many bytes of the file that holds an array are in this process's memory."""
    lines, inside = Path("/proc/self/smaps").read_text().splitlines(), False
    for line in lines:
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            start, end = (int(part, 16) for part in found.groups())
            inside = start <= array.ctypes.data < end
        elif inside and line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the array is in no mapping")


def test_pages_of_large_files_leave_memory_and_come_back(monkeypatch, tmp_path):
    drawn = np.random.default_rng(0).standard_normal((512, 1024), np.float32)
    sketch = Sketch()
    y = sketch.op("MatMul", sketch.input("x", [1, 512]), sketch.constant(drawn, "w"))
    network = load_network(saved_beside(models.Ill(sketch.proto(y), {}), tmp_path))
    users = constant_array(network.graph.initializers["w"])
    ours = WeightFile(drawn.nbytes).take(drawn.dtype, drawn.shape)
    ours[...] = users
    release_files()
    assert min(map(resident, (users, ours))) >= drawn.nbytes, "small files stay"
    monkeypatch.setattr(module, "LARGE_MODEL_BYTES", drawn.nbytes)
    release_files()
    assert max(map(resident, (users, ours))) == 0
    np.testing.assert_array_equal(users, drawn)
    np.testing.assert_array_equal(ours, drawn)


# --- files of the user's ----------------------------------------------------------------------


def test_a_file_of_many_weights_is_mapped_once(tmp_path):
    names = [f"w{i}" for i in range(300)]
    sketch = Sketch()
    y = sketch.input("x", [8])
    for i, name in enumerate(names):
        y = sketch.op("Add", y, sketch.constant(np.full(8, i, np.float32), name))
    path = saved_beside(models.Ill(sketch.proto(y), {}), tmp_path)
    network = load_network(path)
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert len([line for line in maps if str(tmp_path / "weights.bin") in line]) == 1
    for i, name in enumerate(names):
        tensor = network.graph.initializers[name].const_value
        assert isinstance(tensor, MappedTensor)
        np.testing.assert_array_equal(tensor, np.full(8, i))


def test_a_model_that_is_loaded_twice_shares_its_file_until_that_changes(tmp_path):
    sketch = Sketch()
    y = sketch.op("Add", sketch.input("x", [8]), sketch.constant(np.ones(8, np.float32), "w"))
    path = saved_beside(models.Ill(sketch.proto(y), {}), tmp_path)

    def weight() -> np.ndarray:
        tensor = load_network(path).graph.initializers["w"].const_value
        assert tensor is not None
        return tensor.numpy()

    def mapped() -> int:
        gc.collect()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum(str(tmp_path / "weights.bin") in line for line in lines)

    first = weight()
    assert np.shares_memory(first, weight())
    assert mapped() == 1
    changed = tmp_path / "changed"
    changed.write_bytes(np.full(8, 2, np.float32).tobytes())
    changed.replace(tmp_path / "weights.bin")
    np.testing.assert_array_equal(weight(), np.full(8, 2))
    np.testing.assert_array_equal(first, np.ones(8))
    del first
    assert mapped() == 0


@pytest.mark.parametrize(
    ("location", "offset", "mapped"),
    [
        ("whole.bin", 0, True),
        ("whole.bin", 8, False),
        ("whole.bin", -8, False),
        ("none.bin", 0, False),
        ("../outside.bin", 0, False),
        ("link.bin", 0, False),
        ("second.bin", 0, False),
    ],
)
def test_what_no_file_in_the_folder_holds_whole_is_left(tmp_path, location, offset, mapped):
    inside = tmp_path / "model"
    inside.mkdir()
    for file in (inside / "whole.bin", tmp_path / "outside.bin"):
        file.write_bytes(bytes(16))
    (inside / "link.bin").symlink_to(tmp_path / "outside.bin")
    (inside / "second.bin").hardlink_to(tmp_path / "outside.bin")
    tensor = ir.ExternalTensor(
        location, offset, 16, ir.DataType.FLOAT, shape=ir.Shape([4]), name="w", base_dir=inside
    )
    value = ir.val("w", const_value=tensor)
    map_files(ir.Model(ir.Graph([], [], nodes=[], initializers=[value]), ir_version=8))
    assert isinstance(value.const_value, MappedTensor) == mapped


def test_an_int4_constant_of_the_users_is_taken_in(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes([0x21, 0x43]))
    external = ir.ExternalTensor(
        "w.bin", 0, 2, ir.DataType.INT4, shape=ir.Shape([4]), name="w", base_dir=str(tmp_path)
    )
    value = ir.val("w", const_value=external)
    map_files(ir.Model(ir.Graph([], [], nodes=[], initializers=[value]), ir_version=10))
    assert isinstance(value.const_value, ir.Tensor)
    assert value.const_value.dtype == ir.DataType.INT4
    np.testing.assert_array_equal(value.const_value.numpy().astype(int), [1, 2, 3, 4])


# --- low weights ------------------------------------------------------------------------------

NUMBERS = arrays.arrays(
    np.float32, st.integers(257, 300), elements=st.floats(width=32, allow_nan=True)
)


@FORMATS
@given(array=NUMBERS)
def test_rounding_on_disk_is_rounding(fmt, array):
    """A NaN stays one; which one is not fixed."""
    source = MappedTensor(array, name="w")
    value = ir.val("w", const_value=source)
    model = ir.Model(ir.Graph([], [], nodes=[], initializers=[value]), ir_version=8)
    low = LowWeights(model, fmt, large_from=0)
    assert low.in_file(source)
    tensor = low.low(source, "low")
    assert isinstance(tensor, MappedTensor)
    assert (tensor.name, tensor.dtype) == ("low", ir.DataType.from_numpy(fmt.dtype))
    found, expected = tensor.numpy().astype(np.float32), fmt.saturate(array)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@FORMATS
def test_on_disk_and_in_memory_are_the_same(network, weight, fmt):
    disk = LowWeights(network.model, fmt, large_from=0).low(weight, "w")
    memory = LowWeights(network.model, fmt).low(weight, "w")
    assert isinstance(disk, MappedTensor)
    assert not isinstance(memory, MappedTensor)
    assert disk.dtype == memory.dtype
    assert disk.tobytes() == memory.tobytes()


@pytest.mark.parametrize("large_from", [0, 1 << 30])
def test_a_weight_is_made_once_and_is_not_to_be_changed(network, weight, large_from):
    low = LowWeights(network.model, FP16, large_from=large_from)
    first, second = low.low(weight, "a").numpy(), low.low(weight, "b").numpy()
    assert np.shares_memory(first, second)
    assert not first.flags.writeable


def test_small_constants_and_strangers_stay_in_memory(network, weight):
    low = LowWeights(network.model, FP16, large_from=0)
    small = network.graph.initializers["scale"].const_value
    stranger = ir.tensor(np.asarray(weight.numpy()))
    for tensor in (small, stranger):
        assert not low.in_file(tensor)
        expected = FP16.saturate(np.asarray(tensor.numpy()))
        np.testing.assert_array_equal(low.low(tensor, None).numpy(), expected)


def test_nothing_is_reserved_before_it_is_needed(network, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", os.devnull)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    low = LowWeights(network.model, FP16, large_from=0)
    with pytest.raises(CaseError, match="temporary space"):
        low.low(network.graph.initializers["up_w"].const_value, "w")
