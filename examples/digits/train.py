"""Trains the digits vision transformer and writes the example's files next to this script.

Run ``python train.py``; it needs torch and scikit-learn, the files it writes need neither.
It writes ``model.onnx``, ``inputs.npz`` and ``labels.json`` (calibration), ``heldout.npz`` and
``heldout_labels.json``. README.md says what each holds. One thread and fixed seeds make a second
run on the same machine and library versions write the same bytes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from vit import Weights, build_vit, random_weights, rescale_residual

SEED = 0
DIM, DEPTH, HEADS, PATCH, IMAGE, CLASSES = 48, 6, 4, 2, 8, 10
EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 60, 64, 2e-3, 0.05
TRAIN, CALIBRATION, HELDOUT = 1437, 48, 64
# At 600 times its trained size the residual stream still fits FP16; its squares do not.
RESIDUAL_FACTOR = 600.0

Params = dict[str, torch.Tensor]


def load_split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Loads scikit-learn's 1797 digits, shuffled with a fixed seed.

    Returns:
        Training images float32 [1437, 1, 8, 8] in [-1, 1], their labels int64 [1437], then test
        images [360, 1, 8, 8] and labels [360]; no image is in both.
    """
    digits = load_digits()
    images = (digits.images[:, None] / 8.0 - 1.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(images))
    train, test = order[:TRAIN], order[TRAIN:]
    return images[train], labels[train], images[test], labels[test]


def forward(params: Params, images: torch.Tensor) -> torch.Tensor:
    """Runs the network that `vit.build_vit` writes as ONNX.

    Args:
        params: Weights under the keys of `vit`, as tensors.
        images: float32 [batch, 1, 8, 8].

    Returns:
        Logits, float32 [batch, 10].
    """

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return functional.layer_norm(x, (DIM,), weight, bias, float(params[f"{name}.eps"]))

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ params[f"{name}.weight"] + params[f"{name}.bias"]

    def attention(name: str, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            linear(f"{name}.{part}", x).reshape(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for part in "qkv"
        )
        scores = q @ k.transpose(-1, -2) / (DIM // HEADS) ** 0.5
        return linear(f"{name}.proj", (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    weight, bias = params["patch_embed.weight"], params["patch_embed.bias"]
    x = functional.conv2d(images, weight, bias, stride=PATCH).flatten(2).transpose(1, 2)
    x = torch.cat([params["cls_token"].expand(len(x), -1, -1), x], 1) + params["pos_embed"]
    for i in range(DEPTH):
        x = x + attention(f"blocks.{i}.attn", norm(f"blocks.{i}.norm1", x))
        hidden = functional.gelu(linear(f"blocks.{i}.mlp.fc1", norm(f"blocks.{i}.norm2", x)))
        x = x + linear(f"blocks.{i}.mlp.fc2", hidden)
    return linear("head", norm("norm", x)[:, 0])


def train(images: np.ndarray, labels: np.ndarray) -> Weights:
    """Trains with AdamW, a one-cycle learning rate and shifts of up to one pixel.

    Args:
        images: float32 [n, 1, 8, 8].
        labels: int64 [n].

    Returns:
        Trained weights, float32 arrays under the keys of `vit`.
    """
    start = random_weights(
        SEED,
        dim=DIM,
        depth=DEPTH,
        heads=HEADS,
        patch=PATCH,
        image=IMAGE,
        classes=CLASSES,
        channels=1,
    )
    params = {name: torch.from_numpy(array) for name, array in start.items()}
    learned = [p.requires_grad_() for name, p in params.items() if not name.endswith(".eps")]
    # Weight decay is for matrices only, as usual for transformers.
    groups = [
        {"params": [p for p in learned if p.ndim in (2, 4)], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in learned if p.ndim not in (2, 4)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups)
    steps = EPOCHS * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    rng = np.random.default_rng(SEED)
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1.0)
    for _ in range(EPOCHS):
        order = rng.permutation(len(images))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[first : first + BATCH]
            dy, dx = rng.integers(0, 3, 2)
            batch = torch.from_numpy(padded[rows, :, dy : dy + IMAGE, dx : dx + IMAGE])
            logits = forward(params, batch)
            target = torch.from_numpy(labels[rows])
            loss = functional.cross_entropy(logits, target, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(learned, 1.0)
            optimizer.step()
            schedule.step()
    return {name: p.detach().numpy() for name, p in params.items()}


def write_samples(
    folder: Path, stem: str, labels_name: str, images: np.ndarray, labels: np.ndarray
) -> None:
    """Writes samples of one image each and their labels.

    Args:
        folder: Where to write.
        stem: Name of the ``.npz``, whose array ``images`` is float32 [n, 1, 1, 8, 8].
        labels_name: Name of the JSON list of n ints.
        images: float32 [n, 1, 8, 8].
        labels: int64 [n].
    """
    np.savez_compressed(folder / f"{stem}.npz", images=images[:, None])
    (folder / labels_name).write_text(json.dumps(labels.tolist()) + "\n")


def main() -> None:
    """Trains, rescales the residual stream and writes the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    images, labels, test_images, test_labels = load_split()
    weights = train(images, labels)
    with torch.no_grad():
        params = {name: torch.from_numpy(array) for name, array in weights.items()}
        predicted = forward(params, torch.from_numpy(test_images)).argmax(1).numpy()
    print(f"test accuracy {np.mean(predicted == test_labels):.4f} on {len(test_labels)} images")

    scaled = rescale_residual(weights, RESIDUAL_FACTOR)
    onnx.save(build_vit(scaled, heads=HEADS, patch=PATCH, image=IMAGE), folder / "model.onnx")
    cut, end = CALIBRATION, CALIBRATION + HELDOUT
    write_samples(folder, "inputs", "labels.json", test_images[:cut], test_labels[:cut])
    heldout = test_images[cut:end], test_labels[cut:end]
    write_samples(folder, "heldout", "heldout_labels.json", *heldout)


if __name__ == "__main__":
    main()
