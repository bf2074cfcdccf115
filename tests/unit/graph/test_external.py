from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise.backends.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.external import external_files
from halfwise.graph.model import load_network

F32 = TensorProto.FLOAT


def external(folder: Path, **entries: str) -> Path:
    weight = TensorProto(name="w", data_type=F32, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    path = folder / "m.onnx"
    path.write_bytes(add(weight).SerializeToString())
    return path


def add(*weights: TensorProto) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, F32, [4]) for name in "xy")
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], list(weights))
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "model"
    inside.mkdir()
    data = np.arange(4, dtype=np.float32).tobytes()
    (inside / "w.bin").write_bytes(b"head" * 2 + data)
    (tmp_path / "outside.bin").write_bytes(data)
    (inside / "link.bin").symlink_to(tmp_path / "outside.bin")
    return inside


def test_external_data_is_read_and_hashed(folder):
    path = external(folder, location="w.bin", offset="8", length="16")
    network = load_network(path)
    np.testing.assert_array_equal(network.graph.initializers["w"].const_value, [0, 1, 2, 3])
    (folder / "w.bin").write_bytes(b"head" * 2 + np.ones(4, np.float32).tobytes())
    assert load_network(path).sha256 != network.sha256


def test_weights_stay_where_their_file_goes(folder):
    network = load_network(external(folder, location="w.bin", offset="8", length="16"))
    (folder / "w.bin").unlink()
    np.testing.assert_array_equal(network.graph.initializers["w"].const_value, [0, 1, 2, 3])
    assert not ir.serde.serialize_model(network.model).graph.initializer[0].external_data


def test_small_weights_in_a_file_are_handed_over_too(folder):
    network = load_network(external(folder, location="w.bin", offset="8", length="16"))
    ones = np.ones(4, np.float32)
    np.testing.assert_array_equal(Session(network.model).run({"x": ones})["y"], [1, 2, 3, 4])


@pytest.mark.parametrize("entries", [{"location": "none.bin"}, {"location": ""}, {}])
def test_missing_external_data_is_refused(folder, entries):
    with pytest.raises(CaseError, match="which is missing"):
        load_network(external(folder, **entries))


@pytest.mark.parametrize("location", ["../outside.bin", "link.bin", "{absolute}"])
def test_external_data_outside_the_folder_is_refused(folder, location):
    location = location.format(absolute=folder.parent / "outside.bin")
    with pytest.raises(CaseError, match="outside its own folder"):
        load_network(external(folder, location=location, length="16"))


@pytest.mark.parametrize(
    "entries", [{"length": "17"}, {"offset": "12", "length": "16"}, {"offset": "12"}]
)
def test_truncated_external_data_is_refused(folder, entries):
    with pytest.raises(CaseError, match=r"truncated|incomplete"):
        load_network(external(folder, location="w.bin", **{"offset": "8", "length": "8"} | entries))


def test_external_data_without_a_length_is_still_seen_to_be_short(folder):
    (folder / "w.bin").write_bytes(bytes(8))
    with pytest.raises(CaseError, match="incomplete"):
        load_network(external(folder, location="w.bin"))


@pytest.mark.parametrize("entries", [{"offset": "x"}, {"offset": "-8"}, {"length": "1e3"}])
def test_external_data_at_no_number_is_refused(folder, entries):
    with pytest.raises(CaseError, match="Expected numbers of bytes"):
        load_network(external(folder, location="w.bin", **entries))


def test_each_file_is_named_once_and_those_of_bodies_too(folder):
    path = external(folder, location="w.bin", offset="8", length="16")
    proto = onnx.load_model(path, load_external_data=False)
    shared = TensorProto.FromString(proto.graph.initializer[0].SerializeToString())
    (folder / "body.bin").write_bytes(bytes(16))
    inner = TensorProto(name="v", data_type=F32, dims=[4], data_location=TensorProto.EXTERNAL)
    inner.external_data.add(key="location", value="body.bin")
    out = helper.make_tensor_value_info("o", F32, [4])
    body = helper.make_graph([helper.make_node("Neg", ["v"], ["o"])], "body", [], [out], [inner])
    proto.graph.initializer.append(shared)
    proto.graph.node.append(
        helper.make_node("If", ["flag"], ["z"], then_branch=body, else_branch=body)
    )
    assert external_files(proto, path) == [folder / "w.bin", folder / "body.bin"]
    assert external_files(add(shared), path) == [folder / "w.bin"]
