"""Writes a ViT-B/16-size model with planted FP16 overflows, and inputs to analyse it with.

Run ``python bench/vit.py --out DIR``. DIR gets ``model.onnx`` (86 M random weights, 346 MB) and
the folder ``inputs`` with ``images.npy``, float32 [samples, batch, 3, 224, 224]: random crops of
scikit-learn's two sample photographs, or 1/f noise where that is not installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.digits import vit

DIM, DEPTH, HEADS, PATCH, IMAGE, CLASSES, CHANNELS = 768, 12, 12, 16, 224, 1000, 3
# A power of two, so that planting changes no FP32 rounding at all. It takes the LayerNorms'
# inputs, of standard deviation near 1, to the thousands: they fit FP16, their squares do not.
PLANT = 1024.0


def plant(model: onnx.ModelProto, names: Sequence[str], factor: float = PLANT) -> None:
    """Multiplies the input of LayerNorms by a factor, in place, leaving the function unchanged.

    Each gets one new node ``/<LayerNorm>/plant`` before it, and its epsilon is multiplied by
    `factor`²; a LayerNorm's output does not depend on the scale of its input.

    Args:
        model: A model of `vit.build_vit`.
        names: LayerNorms to plant in, among `vit.layer_norms`.
        factor: Factor, > 0.

    Raises:
        KeyError: The model has no such LayerNorm.
    """
    graph = model.graph
    nodes = {node.name: node for node in graph.node}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    graph.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), "plant"))
    for name in names:
        path = "/" + name.replace(".norm", "/norm")
        mean, centred = nodes[f"{path}/ReduceMean"], nodes[f"{path}/Sub"]
        planted = helper.make_node(
            "Mul", [mean.input[0], "plant"], [f"{path}/plant_output_0"], f"{path}/plant"
        )
        mean.input[0] = centred.input[0] = planted.output[0]
        position = next(i for i, node in enumerate(graph.node) if node.name == mean.name)
        graph.node.insert(position, planted)
        eps = constants[f"{name}.eps"]
        scaled = (numpy_helper.to_array(eps) * factor**2).astype(np.float32)
        eps.CopyFrom(numpy_helper.from_array(scaled, eps.name))


def photographs(rng: np.random.Generator) -> list[np.ndarray]:
    """Loads the two photographs that scikit-learn bundles, or draws 1/f noise without it.

    The noise has the amplitude spectrum of natural images (Field 1987, J. Opt. Soc. Am. A 4).

    Args:
        rng: Source of the noise.

    Returns:
        Images uint8 [height, width, 3] of at least 256 pixels a side.
    """
    try:
        from sklearn.datasets import load_sample_images  # noqa: PLC0415 - optional

        return list(load_sample_images().images)
    except ImportError:
        print("no scikit-learn or no Pillow: the inputs are 1/f noise")
    y, x = np.meshgrid(np.fft.fftfreq(512), np.fft.rfftfreq(512), indexing="ij")
    spectrum = np.fft.rfft2(rng.standard_normal((512, 512, 3)), axes=(0, 1))
    spectrum /= np.maximum(np.hypot(y, x), 1 / 512)[..., None]
    noise = np.fft.irfft2(spectrum, axes=(0, 1))
    return [np.clip(127.5 + 50 * noise / noise.std(), 0, 255).astype(np.uint8)]


def crop(photograph: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Cuts a random square, flips it half of the time, resizes it to the nearest pixels.

    Args:
        photograph: uint8 [height, width, 3] of at least 160 pixels a side.
        rng: Source of the position, size and flip.

    Returns:
        float32 [3, 224, 224] in [-1, 1], the normalisation of ViT (mean 0.5, deviation 0.5).
    """
    height, width, _ = photograph.shape
    side = int(rng.integers(160, min(height, width) + 1))
    top, left = rng.integers(0, height - side + 1), rng.integers(0, width - side + 1)
    grid = np.arange(IMAGE) * side // IMAGE
    columns = grid[::-1] if rng.random() < 0.5 else grid
    square = photograph[np.ix_(top + grid, left + columns)]
    return (square.transpose(2, 0, 1) / 127.5 - 1.0).astype(np.float32)


def main() -> None:
    """Writes the model and the inputs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--samples", type=int, default=100, help="samples to write")
    parser.add_argument("--batch", type=int, default=4, help="images per sample")
    parser.add_argument("--planted", type=int, default=12, help="LayerNorms that overflow, of 25")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)

    weights = vit.random_weights(
        args.seed,
        dim=DIM,
        depth=DEPTH,
        heads=HEADS,
        patch=PATCH,
        image=IMAGE,
        classes=CLASSES,
        channels=CHANNELS,
    )
    norms = vit.layer_norms(weights)
    if not 0 <= args.planted <= len(norms):
        parser.error(f"--planted must be between 0 and {len(norms)}")
    spread = np.linspace(0, len(norms) - 1, args.planted).round().astype(int)
    chosen = [norms[i] for i in spread]
    model = vit.build_vit(weights, heads=HEADS, patch=PATCH, image=IMAGE)
    plant(model, chosen)

    (args.out / "inputs").mkdir(parents=True, exist_ok=True)
    onnx.save(model, args.out / "model.onnx")
    # Written through a memory map: the default is 240 MB.
    images = np.lib.format.open_memmap(
        args.out / "inputs" / "images.npy",
        mode="w+",
        dtype=np.float32,
        shape=(args.samples, args.batch, CHANNELS, IMAGE, IMAGE),
    )
    sources = photographs(rng)
    for sample in images:
        for row in range(args.batch):
            sample[row] = crop(sources[rng.integers(len(sources))], rng)
    images.flush()
    print(f"{args.out}: {len(model.graph.node)} nodes, planted in {', '.join(chosen)}")


if __name__ == "__main__":
    main()
