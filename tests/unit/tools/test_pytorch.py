# ruff: noqa: PLC0415 (modules of PyTorch are loaded only where it is)

import importlib.util

import numpy as np
import onnx
import pytest

from halfwise.errors import BackendMissing, CaseError
from halfwise.tools.pytorch import DynamicAxis, Module, demand_torch, export

HERE = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HERE, reason="needs PyTorch: pip install 'halfwise[torch]'")


@pytest.mark.skipif(HERE, reason="PyTorch is here")
def test_without_torch():
    with pytest.raises(BackendMissing, match="PyTorch is not installed") as caught:
        demand_torch()
    assert "halfwise[torch]" in caught.value.hint
    with pytest.raises(BackendMissing):
        Module(None, "m.py:make")


@pytest.fixture
def small():
    from tests import torch_modules

    return Module(torch_modules.small(), "m.py:small")


@needs_torch
def test_a_module_takes_and_gives_arrays(small):
    assert small.names == ("image", "scale")
    assert not small.module.training
    assert {name: a.shape for name, a in small.example.items()} == {
        "image": (1, 3, 8, 8),
        "scale": (1,),
    }
    mean, tokens = small.run(small.example)
    assert (mean.shape, tokens.shape) == ((1, 8), (1, 64, 8))
    assert np.array_equal(mean, small.run(small.example)[0])


@needs_torch
def test_names_of_arrays(small):
    image, scale = np.zeros((1, 3, 8, 8), np.float32), np.ones(1, np.float32)
    assert list(small.named({"scale": scale, "image": image})) == ["image", "scale"]
    assert list(small.named({"file": image})) == ["image"]
    with pytest.raises(CaseError, match="not parameters of the module's forward"):
        small.named({"image": image, "weight": scale})
    with pytest.raises(CaseError, match=r"raised RuntimeError: .* on inputs of shape image 1×1"):
        small.run({"image": image[:, :1], "scale": scale})


@needs_torch
def test_a_module_without_outputs():
    from tests import torch_modules

    with pytest.raises(CaseError, match=r"m\.py:empty returns no tensor"):
        Module(torch_modules.empty(), "m.py:empty").run({"x": np.zeros(3, np.float32)})


@needs_torch
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("fold", [True, False])
def test_both_exporters(small, tmp_path, exporter, fold):
    batch = [DynamicAxis("image", 0, "batch"), DynamicAxis("scale", 0, "batch")]
    arrays = {name: np.repeat(array, 2, 0) for name, array in small.example.items()}
    path = tmp_path / "m.onnx"
    export(small, arrays, path, dynamic=batch, exporter=exporter, opset=18, fold=fold)
    model = onnx.load(path)
    assert [i.name for i in model.graph.input] == ["image", "scale"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert model.opset_import[0].version == 18
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@needs_torch
def test_what_is_no_module():
    from tests import torch_modules

    for made, message in (
        (3, "returned int, not a torch.nn.Module"),
        (torch_modules.half(), "stores float16"),
        ((torch_modules.Frozen(), "x"), "are not tensors"),
    ):
        with pytest.raises(CaseError, match=message):
            Module(made, "m.py:make")
