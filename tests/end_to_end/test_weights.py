"""`halfwise export RUN --as weights`: a run's repairs in the state dict of the user's module."""

import json

import numpy as np
import onnx
import pytest

from halfwise.tools.weights import read_safetensors, write_safetensors
from tests import models
from tests.models.selection import arg_max


@pytest.fixture
def state(fix, tmp_path):
    """A run whose repairs are enough, and the state dict: transposed, and one weight apart."""
    ill = models.conv_chain()
    assert fix(ill, "--only", "fp16").code == 0
    state = {
        f"m.{tensor.name}": np.ascontiguousarray(onnx.numpy_helper.to_array(tensor).T)
        for tensor in ill.proto.graph.initializer
    }
    state["counter"] = np.asarray(3)
    write_safetensors(tmp_path / "state.safetensors", state)
    return state


EXPORT = ("export", "run", "--as", "weights")


def test_a_state_dict_is_written_whole(call, state, tmp_path):
    ended = call(*EXPORT, "--state-dict", "state.safetensors", "-o", "new.safetensors")
    assert ended.code == 0, ended.err
    new = read_safetensors(tmp_path / "new.safetensors")
    assert new.keys() == state.keys()
    rows = json.loads((tmp_path / "new.safetensors.json").read_text())["changes"]
    factors = {row["key"]: row["factor"] for row in rows}
    assert None not in factors
    for name, array in state.items():
        assert new[name].dtype == array.dtype
        np.testing.assert_array_equal(new[name], array * factors.get(name, 1))
    before = (tmp_path / "new.safetensors").read_bytes()
    assert call(*EXPORT, "-o", "new.safetensors").code == 2
    assert (tmp_path / "new.safetensors").read_bytes() == before


def test_scores_lose_in_the_weights_what_they_share(call, fix, tmp_path):
    ill = arg_max()
    assert fix(ill, "--only", "fp16").code == 0
    (weights,) = map(onnx.numpy_helper.to_array, ill.proto.graph.initializer)
    write_safetensors(tmp_path / "state.safetensors", {"head": np.ascontiguousarray(weights.T)})
    ended = call(*EXPORT, "--state-dict", "state.safetensors", "-o", "new.safetensors")
    assert ended.code == 0, ended.err
    (head,) = read_safetensors(tmp_path / "new.safetensors").values()
    np.testing.assert_allclose(
        head, (weights - np.median(weights, axis=1, keepdims=True)).T, atol=2e-6
    )


def test_what_no_tensor_holds_is_named(call, state, tmp_path):
    name = next(iter(state))
    write_safetensors(tmp_path / "less.safetensors", {name: state[name]})
    ended = call(*EXPORT, "--state-dict", "less.safetensors")
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)["changes"]
    missing = [row["name"] for row in rows if row["key"] is None]
    assert missing
    assert all(each in ended.err for each in missing)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\3\4 torch.save", b"\xff" * 40, b"\2\0\0\0\0\0\0\0[]", None],
    ids=["empty", "zip", "long", "list", "missing"],
)
@pytest.mark.usefixtures("state")
def test_files_that_are_no_state_dict(refused, tmp_path, content):
    if content is not None:
        (tmp_path / "bad.safetensors").write_bytes(content)
    message = refused(3, *EXPORT, "--state-dict", "bad.safetensors", "-o", "new.safetensors")
    assert "bad.safetensors" in message


def test_a_run_without_repairs(fix, refused):
    assert fix(models.conv_chain(), "--no-repair").code == 0
    assert "--only fp16" in refused(3, *EXPORT)


def test_repairs_that_add_nodes(fix, refused):
    assert fix(models.root_mean_square(), "--only", "fp16").code == 0
    assert "scale at" in refused(3, *EXPORT)


@pytest.mark.usefixtures("state")
def test_options_of_recipes(refused):
    assert "--typing" in refused(2, *EXPORT, "--typing", "weak")
    assert "--state-dict" in refused(
        2, "export", "run", "--as", "json", "--state-dict", "state.safetensors"
    )
