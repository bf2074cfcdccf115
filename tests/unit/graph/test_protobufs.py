import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.model import constant_array
from halfwise.graph.protobufs import (
    STAND_IN,
    external_files,
    graphs_in,
    read_proto,
    said,
    said_by_checker,
    skeleton,
    weightless,
    without_weights,
)
from halfwise.tensorrt.link import model_files
from tests import models


def test_a_file_is_read_and_heard(tmp_path):
    proto, path = models.layer_norm().proto, tmp_path / "model.onnx"
    onnx.save(proto, path)
    digest = hashlib.sha256()
    assert read_proto(path, heard=digest.update) == proto
    assert digest.hexdigest() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_empty_file_is_no_model(tmp_path):
    (tmp_path / "model.onnx").touch()
    with pytest.raises(CaseError, match="not an ONNX model"):
        read_proto(tmp_path / "model.onnx")


def test_how_much_of_external_weights_is_read_is_told(tmp_path):
    weights = np.zeros(500_000, np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [500_000])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [500_000])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    path, told = tmp_path / "model.onnx", []
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=True)
    load_network(path, lambda *step: told.append(step))
    assert told == [(1, 2, "MB"), (2, 2, "MB")]


def refused(*nodes, constants=()) -> Exception:
    """ONNX's error for nodes from x to y."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(onnx.checker.ValidationError) as caught:
        onnx.checker.check_model(model)
    return caught.value


def node(op, *inputs, name="r", **attributes):
    return helper.make_node(op, inputs, ["y"], name=name, **attributes)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            node("Relu", "x", "x"),
            "node 'r' (Relu): Node(r) with schema(::Relu:14) has input size 2 not in range",
        ),
        (
            node("Relu", "x", "x", name=""),
            "a Relu without a name: Node with schema(::Relu:14) has input size 2 not in range",
        ),
        (
            node("Conv", "x", "x", foo=1),
            "node 'r' (Conv): Unrecognized attribute: foo for operator",
        ),
        (node("Concat", "x"), "node 'r' (Concat): Required attribute 'axis' is missing"),
        (node("Nope", "x"), "node 'r' (Nope): No Op registered for Nope with domain_version of 17"),
        (node("Relu", "z"), "Nodes in a graph must be topologically sorted, however input 'z' of"),
    ],
)
def test_a_refused_node_is_one_line_that_begins_with_it(made, told):
    assert said(refused(made)).startswith(told)
    assert len(said(refused(made)).splitlines()) == 1


def test_a_node_in_a_body_is_named_too():
    end = helper.make_tensor_value_info("end", TensorProto.FLOAT, [1, 4])
    inner = helper.make_node("Relu", ["x", "x"], ["end"], name="inner")
    body = helper.make_graph([inner], "body", [], [end])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [1])
    error = refused(node("If", "yes", then_branch=body, else_branch=body), constants=[yes])
    assert said(error).startswith("node 'r' (If): Node(inner) with schema(::Relu:14) has input")


def test_what_an_older_onnx_prints_of_a_node_is_left_out():
    dump = 'input: "x"\noutput: "y"\nop_type: "Relu"\nattribute {\n  name: "k"\n}\n'
    error = ValueError(f"Unrecognized attribute: k.\n\n==> Context: Bad node spec: {dump}")
    assert said(error) == "Unrecognized attribute: k"


def test_the_first_of_several_errors_counts_and_one_without_words_has_a_name():
    outer = RuntimeError("in a pass")
    outer.__cause__ = ValueError("two\n  lines")
    assert said(outer) == "two lines"
    assert said(KeyError()) == "KeyError"
    assert "not UTF-8" in said(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"))


F32 = TensorProto.FLOAT
PLACES = ["body", "branch", "default"]


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


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "x"},
        {"offset": "-8"},
        {"length": "1e3"},
        {"offset": "9" * 5000},
        {"length": "9" * 5000},
        {"offset": str(1 << 63)},
    ],
)
def test_external_data_at_no_number_is_refused(folder, entries):
    with pytest.raises(CaseError, match="must be numbers of bytes"):
        load_network(external(folder, location="w.bin", **entries))


@pytest.mark.parametrize("location", ["a\0b", "w" * 5000, "circle", "pipe"])
def test_external_data_that_is_no_regular_file_is_refused(folder, location):
    os.mkfifo(folder / "pipe")
    (folder / "circle").symlink_to("circle")
    with pytest.raises(CaseError, match=r"not a path|not a regular file") as caught:
        load_network(external(folder, location=location))
    assert len(caught.value.message) < 1000


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
    files = {name: folder / name for name in ("w.bin", "body.bin")}
    assert external_files(proto, path) == files
    assert external_files(add(shared), path) == {"w.bin": folder / "w.bin"}


def external_tensor(location: str) -> TensorProto:
    tensor = TensorProto(name="k", data_type=F32, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "8"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def calling(folder: Path, location: str, place: str) -> Path:
    """Save a model whose function reads external data: in its body, a branch or a default."""
    constant = helper.make_node("Constant", [], ["k"], value=external_tensor(location))
    defaults = []
    if place == "branch":
        k = helper.make_tensor_value_info("k", F32, [4])
        branch = helper.make_graph([constant], "branch", [], [k])
        flag = helper.make_tensor("flag", TensorProto.BOOL, [], [True])
        choose = helper.make_node("If", ["f"], ["k"], then_branch=branch, else_branch=branch)
        nodes = [helper.make_node("Constant", [], ["f"], value=flag), choose]
    elif place == "default":
        defaults = [helper.make_attribute("value", external_tensor(location))]
        del constant.attribute[:]
        constant.attribute.add(name="value", ref_attr_name="value", type=onnx.AttributeProto.TENSOR)
        nodes = [constant]
    else:
        nodes = [constant]
    nodes.append(helper.make_node("Add", ["a", "k"], ["b"]))
    opset = helper.make_opsetid("", 17)
    body = helper.make_function(
        "own", "Shift", ["a"], ["b"], nodes, [opset], attribute_protos=defaults
    )
    x, y = (helper.make_tensor_value_info(name, F32, [4]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("Shift", ["x"], ["y"], domain="own")], "g", [x], [y]
    )
    imports = [opset, helper.make_opsetid("own", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=[body])
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("place", PLACES)
def test_data_of_functions_is_read_beside_the_model_and_hashed(folder, monkeypatch, place):
    elsewhere = folder.parent / "cwd"
    elsewhere.mkdir()
    (elsewhere / "w.bin").write_bytes(bytes(24))
    monkeypatch.chdir(elsewhere)
    path = calling(folder, "w.bin", place)
    network = load_network(path)
    ones = np.ones(4, np.float32)
    np.testing.assert_array_equal(Session(network.model).run({"x": ones})["y"], [1, 2, 3, 4])
    (folder / "w.bin").write_bytes(bytes(24))
    assert load_network(path).sha256 != network.sha256


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ["../outside.bin", "link.bin", "{absolute}"])
def test_data_of_functions_outside_the_folder_is_refused(folder, monkeypatch, place, location):
    monkeypatch.chdir(folder)
    location = location.format(absolute=folder.parent / "outside.bin")
    with pytest.raises(CaseError, match="outside its own folder"):
        load_network(calling(folder, location, place))


def test_a_model_in_memory_has_no_files(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for path in (external(folder, location="w.bin"), calling(folder, "w.bin", "body")):
        proto = onnx.load_model(path, load_external_data=False)
        with pytest.raises(CaseError, match="in memory"):
            network_from_proto(proto)


def test_data_of_attributes_is_taken_into_memory(folder):
    path = external(folder, location="w.bin", offset="8", length="16")
    proto = onnx.load_model(path, load_external_data=False)
    tensors = [external_tensor("w.bin"), helper.make_tensor("one", F32, [1], [1.0])]
    proto.graph.node[0].CopyFrom(
        helper.make_node("Tables", ["x"], ["y"], domain="own", tensors=tensors, one=tensors[0])
    )
    proto.opset_import.append(helper.make_opsetid("own", 1))
    path.write_bytes(proto.SerializeToString())
    network = load_network(path)
    (folder / "w.bin").unlink()
    (node,) = network.nodes()
    held = (*node.attributes["tensors"].as_tensors(), node.attributes["one"].as_tensor())
    assert [t.numpy().tolist() for t in held] == [[0, 1, 2, 3], [1], [0, 1, 2, 3]]


@pytest.fixture
def hub(tmp_path):
    """A model and its weights as links in a snapshot; their content lies among blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    external(blobs, location="w.data", length="16").rename(blobs / "h1")
    (blobs / "h2").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (snapshot / "m.onnx").symlink_to("../../../blobs/h1")
    (snapshot / "w.data").symlink_to("../../../blobs/h2")
    return snapshot / "m.onnx"


def test_a_model_of_links_into_one_cache_is_an_ordinary_one(hub, tmp_path):
    network = load_network(hub)
    np.testing.assert_array_equal(network.graph.initializers["w"].const_value, [0, 1, 2, 3])
    files = model_files(hub)
    assert files.hashes.keys() == {"m.onnx", "w.data"}
    assert files.sha256 == network.sha256
    (tmp_path / "blobs" / "h2").unlink()
    with pytest.raises(CaseError, match="which is missing"):
        load_network(hub)


def test_onnx_checks_a_model_whose_path_is_no_text(folder):
    path = external(folder, location="w.bin", offset="8", length="16")
    odd = path.rename(folder / os.fsdecode(b"m\xff.onnx"))
    assert said_by_checker(read_proto(odd)) == ""


def test_links_beside_a_model_lead_nowhere_else(hub, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(16))
    (hub.parent / "w.data").unlink()
    (hub.parent / "w.data").symlink_to(secret)
    with pytest.raises(CaseError, match="outside its own folder"):
        load_network(hub)
    (hub.parent / "w.data").unlink()
    (hub.parent / "w.data").write_bytes(bytes(16))
    assert load_network(hub).graph.initializers["w"].const_value is not None


def test_a_model_of_links_names_nothing_outside_its_folder(hub, tmp_path):
    # The blobs are where its own content lies, but only a link may lead there.
    for location in ("../../../blobs/h2", str(tmp_path / "blobs" / "h2")):
        external(tmp_path / "blobs", location=location, length="16").rename(
            tmp_path / "blobs" / "h1"
        )
        with pytest.raises(CaseError, match="outside its own folder"):
            load_network(hub)


def test_weights_half_of_which_are_links_are_refused(hub, tmp_path):
    blobs = tmp_path / "blobs"
    weights = []
    for name in ("w", "w2"):
        weight = TensorProto(name=name, data_type=F32, dims=[4], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value=f"{name}.data")
        weights.append(weight)
    (blobs / "h1").write_bytes(add(*weights).SerializeToString())
    (hub.parent / "w2.data").write_bytes(bytes(16))
    with pytest.raises(CaseError, match="are in different folders"):
        load_network(hub)


@pytest.fixture
def model():
    return network_from_proto(models.large_weights().proto).model


def test_large_tensors_are_handed_over_and_small_ones_stay(model):
    slim, arrays = weightless(model)
    assert set(arrays) == {"up_w", "down_w", "out_w"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, constant_array(model.graph.initializers[name]))
    places = {t.name: [e.value for e in t.external_data] for t in slim.graph.initializer}
    assert {n for n, place in places.items() if place[:1] == [STAND_IN]} == set(arrays)
    assert slim.ByteSize() < 64 * 64 * 4


def test_the_model_is_as_it_was(model):
    before = {n: v.const_value for n, v in model.graph.initializers.items()}
    weightless(model)
    assert {n: v.const_value for n, v in model.graph.initializers.items()} == before


def test_mapped_tensors_are_not_copied(tmp_path):
    model = load_network(models.saved_beside(models.large_weights(), tmp_path)).model
    for name, array in weightless(model)[1].items():
        assert np.shares_memory(array, constant_array(model.graph.initializers[name]))


def test_constants_of_bodies_move_to_the_main_graph():
    model = network_from_proto(models.two_bodies().proto).model
    slim, arrays = weightless(model)
    assert {t.name for t in slim.graph.initializer} >= set(arrays)
    bodies = list(graphs_in(slim.graph))[1:]
    assert len(bodies) == len(arrays) == 2
    assert not any(body.initializer for body in bodies)
    assert all(body.initializers for body in model.graph.subgraphs())


def test_a_skeleton_has_inputs_in_place_of_them(model):
    proto, arrays = skeleton(model)
    onnx.checker.check_model(proto, full_check=True)
    assert {i.name for i in proto.graph.input} == {"x", *arrays}
    assert [t.name for t in proto.graph.initializer] == ["scale"]


@pytest.mark.parametrize("elements", [599, 600])
def test_onnx_checks_without_weights_unless_bytes_are_missing(elements):
    data = np.ones(elements, np.float32).tobytes()
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[600], raw_data=data)
    proto = onnx.ModelProto()
    proto.graph.initializer.append(weights)
    with without_weights(proto):
        assert (not proto.graph.initializer[0].raw_data) == (elements == 600)
    assert proto.graph.initializer[0] == weights
