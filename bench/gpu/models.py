"""Makes the models of the GPU benches, with inputs; everything follows from seeds.

    python -m bench.gpu.models --out DIR            all
    python -m bench.gpu.models --out DIR vit_b …    those named

Each makes `DIR/<name>/model.onnx`, `inputs.npz` and `heldout.npz`, arrays [samples, *input shape].
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench import vit as vit_b
from bench.gpu.resnet import IMAGE_DEVIATION, IMAGE_MEAN, resnet
from examples.digits import vit

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
HEADS, PATCH, IMAGE = 4, 2, 8
"""Sizes of the digits model, as in `examples/digits/train.py`."""
RESIDUAL = 600.0
"""Factor on the residual stream of the digits model in the repository."""
FFN = 30000.0
DIGITS_BATCH = 16
VIT_B_RESIDUAL = 1024.0
"""A power of two changes no FP32 rounding. The stream stays within FP16, its squares do not."""
CALIBRATION, HELDOUT = 9, 3


@dataclass(frozen=True)
class Made:
    """A model and its inputs.

    Attributes:
        model: The FP32 model.
        inputs: For calibration, arrays [samples, *input shape] by input.
        heldout: For the verdict, likewise.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, np.ndarray]
    heldout: Mapping[str, np.ndarray]

    def save(self, folder: Path) -> None:
        """Write all three into `folder`, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(self.model, folder / "model.onnx")
        for name in ("inputs", "heldout"):
            arrays: dict[str, Any] = dict(getattr(self, name))
            np.savez(folder / f"{name}.npz", **arrays)


def digits() -> Made:
    """Return the bundled model, whose residual stream is × 600: Pow overflows in LayerNorms."""
    return Made(onnx.load(DIGITS / "model.onnx"), *_digit_images())


def digits_ffn() -> Made:
    """Return it with the residual stream as trained and one FFN × 30000; the function is the same.

    The output of the GELU in block 2 is × 30000, and the weights of `fc2` are divided by as much.
    """
    given = onnx.load(DIGITS / "model.onnx").graph
    stored = {t.name: numpy_helper.to_array(t) for t in given.initializer}
    # `build_vit` makes shapes, indices and the scalars of formulas itself.
    names = [n for n in stored if "." in n and not n.startswith(("dims.", "index."))]
    trained = {n: stored[n] for n in (*names, "cls_token", "pos_embed")}
    weights = vit.rescale_residual(trained, 1 / RESIDUAL)
    scope = "blocks.2.mlp"
    weights[f"{scope}.fc2.weight"] = (weights[f"{scope}.fc2.weight"] / FFN).astype(np.float32)
    model = vit.build_vit(weights, heads=HEADS, patch=PATCH, image=IMAGE)
    _rewire(model, "/blocks.2/mlp/act/Mul_1", "half", 0.5 * FFN)
    return Made(model, *_digit_images())


def _rewire(model: onnx.ModelProto, name: str, old: str, value: float) -> None:
    """Give the node `name` its own constant instead of `old`."""
    node = next(n for n in model.graph.node if n.name == name)
    new = f"{name}_{old}"
    model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), new))
    node.input[list(node.input).index(old)] = new


def _digit_images() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    files = (np.load(DIGITS / f"{name}.npz")["images"] for name in ("inputs", "heldout"))
    inputs, heldout = (f.reshape(-1, DIGITS_BATCH, *f.shape[2:]) for f in files)
    return {"images": inputs}, {"images": heldout}


def vit_b16() -> Made:
    """Return a model of ViT-B/16's size, LayerNorms written out: in FP16 all 25 overflow."""
    return Made(vit_b16_scaled(), *_photographs(0.5, 0.5))


def vit_b16_layernorm() -> Made:
    """Return the same with LayerNormalization nodes, the stream as drawn, and one FFN × 30000.

    A LayerNormalization node takes its sums in FP32, so a scaled stream would do no harm.
    """
    model = vit_b16_scaled(1.0)
    _fuse_layer_norms(model)
    weights = {t.name: t for t in model.graph.initializer}
    second = weights["blocks.6.mlp.fc2.weight"]
    scaled = (numpy_helper.to_array(second) / FFN).astype(np.float32)
    second.CopyFrom(numpy_helper.from_array(scaled, second.name))
    _rewire(model, "/blocks.6/mlp/act/Mul_1", "half", 0.5 * FFN)
    return Made(model, *_photographs(0.5, 0.5))


def vit_b16_scaled(residual: float = VIT_B_RESIDUAL) -> onnx.ModelProto:
    """Return the model of `vit_b16` with its residual stream × `residual`, as drawn with 1."""
    sizes = {"dim": vit_b.DIM, "depth": vit_b.DEPTH, "classes": vit_b.CLASSES}
    shape: dict[str, Any] = {"heads": vit_b.HEADS, "patch": vit_b.PATCH, "image": vit_b.IMAGE}
    weights = vit.random_weights(0, channels=vit_b.CHANNELS, **sizes, **shape)
    return vit.build_vit(vit.rescale_residual(weights, residual), opset=17, **shape)


def _fuse_layer_norms(model: onnx.ModelProto) -> None:
    """Replace the nodes of each LayerNorm by one LayerNormalization, in place."""
    nodes = list(model.graph.node)
    constants = {t.name: t for t in model.graph.initializer}
    groups: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        scope = node.name.rpartition("/")[0]
        if scope.endswith(("/norm", "/norm1", "/norm2")):
            groups.setdefault(scope, []).append(node)
    del model.graph.node[:]
    for node in nodes:
        scope = node.name.rpartition("/")[0]
        group = groups.get(scope)
        if group is None:
            model.graph.node.append(node)
        elif node is group[-1]:
            eps, gamma, beta = group[4].input[1], group[-2].input[1], group[-1].input[1]
            fused = helper.make_node(
                "LayerNormalization",
                [group[0].input[0], gamma, beta],
                [node.output[0]],
                f"{scope}/LayerNormalization",
                axis=-1,
                epsilon=float(numpy_helper.to_array(constants[eps])),
            )
            model.graph.node.append(fused)


def resnet50() -> Made:
    """Return a model of ResNet-50's size; inside one bottleneck of stage 3 all is × 2¹⁷."""
    return Made(resnet(), *_photographs(IMAGE_MEAN, IMAGE_DEVIATION))


def _photographs(
    mean: float | np.ndarray, deviation: float | np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return single images, normalised; those held out are other crops of the same photographs."""
    images = photographs(mean, deviation, CALIBRATION + HELDOUT)[:, None]
    return {"images": images[:CALIBRATION]}, {"images": images[CALIBRATION:]}


def photographs(
    mean: float | np.ndarray, deviation: float | np.ndarray, count: int, seed: int = 0
) -> np.ndarray:
    """Return crops of photographs, normalised, float32 [count, 3, 224, 224]."""
    rng = np.random.default_rng(seed)
    sources = vit_b.photographs(rng)
    crops = np.stack([vit_b.crop(sources[i % len(sources)], rng) for i in range(count)])
    pixels = (crops + 1) / 2
    return np.asarray((pixels - mean) / deviation, np.float32)


def small_conv() -> Made:
    """Return three convolutions with a BatchNorm and a sum, static batch 4, for `probe.py`."""
    rng = np.random.default_rng(0)
    constants: list[onnx.TensorProto] = []

    def constant(name: str, *shape: int, fan_in: int = 1) -> str:
        drawn = rng.standard_normal(shape) * math.sqrt(2 / fan_in)
        constants.append(numpy_helper.from_array(drawn.astype(np.float32), name))
        return name

    def positive(name: str, size: int) -> str:
        drawn = rng.uniform(0.5, 1.5, size).astype(np.float32)
        constants.append(numpy_helper.from_array(drawn, name))
        return name

    def conv(name: str, x: str, channels: tuple[int, int]) -> onnx.NodeProto:
        fan_in, fan_out = channels
        weight = constant(f"{name}.weight", fan_out, fan_in, 3, 3, fan_in=9 * fan_in)
        bias = constant(f"{name}.bias", fan_out)
        return helper.make_node("Conv", [x, weight, bias], [f"{name}.y"], name, pads=[1] * 4)

    norm = [positive("bn.scale", 32), constant("bn.shift", 32), constant("bn.mean", 32)]
    nodes = [
        conv("conv1", "images", (3, 32)),
        helper.make_node(
            "BatchNormalization", ["conv1.y", *norm, positive("bn.var", 32)], ["bn.y"], "bn"
        ),
        helper.make_node("Relu", ["bn.y"], ["relu1.y"], "relu1"),
        conv("conv2", "relu1.y", (32, 32)),
        helper.make_node("Relu", ["conv2.y"], ["relu2.y"], "relu2"),
        helper.make_node("Add", ["relu2.y", "relu1.y"], ["add.y"], "add"),
        conv("conv3", "add.y", (32, 16)),
        helper.make_node("GlobalAveragePool", ["conv3.y"], ["features"], "pool"),
    ]
    shapes = {"images": [4, 3, 32, 32], "features": [4, 16, 1, 1]}
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    graph = helper.make_graph(nodes, "small_conv", ends[:1], ends[1:], constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="halfwise"
    )
    images = rng.standard_normal((6, *shapes["images"])).astype(np.float32)
    return Made(model, {"images": images[:4]}, {"images": images[4:]})


MAKERS: Mapping[str, Callable[[], Made]] = {
    "digits": digits,
    "digits_ffn": digits_ffn,
    "vit_b": vit_b16,
    "vit_b_layernorm": vit_b16_layernorm,
    "resnet50": resnet50,
    "small_conv": small_conv,
}


def main(makers: Mapping[str, Callable[[], Made]], about: str) -> None:
    """Make the models that the command line names; `about` is the text above its options."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"among {', '.join(makers)}")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    given = parser.parse_args()
    for name in given.names or list(makers):
        if name not in makers:
            parser.error(f"there is no {name}, but {', '.join(makers)}")
        made = makers[name]()
        made.save(given.out / name)
        print(f"{given.out / name}: {len(made.model.graph.node)} nodes")


if __name__ == "__main__":
    main(MAKERS, __doc__ or "")
