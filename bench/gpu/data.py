"""Inputs of the drawn networks: crops of photographs, spectra of music made here, and word ids."""

from __future__ import annotations

import numpy as np

from bench import vit
from bench.gpu.basic_pitch import RATE, music

CROP = 224
"""Side of the crops of `bench.vit`, pixels."""


def photographs(count: int, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Return crops of photographs, float32 [count, 3, *shape] in [-1, 1].

    Each pixel is the mean of a block; `shape` is at most 224 a side.
    """
    rng = np.random.default_rng(seed)
    sources = vit.photographs(rng)
    crops = np.stack([vit.crop(sources[i % len(sources)], rng) for i in range(count)])
    block = min(CROP // side for side in shape)
    height, width = (side * block for side in shape)
    blocks = crops[:, :, :height, :width].reshape(count, 3, shape[0], block, shape[1], block)
    return np.asarray(blocks.mean((3, 5)), np.float32)


def spectra(count: int, frames: int, bands: int) -> np.ndarray:
    """Return the energies of chords in bands that are equally wide in log frequency.

    Natural logarithms over a floor of 80 dB below the largest, shifted and scaled to about
    [-1, 1], float32 [count, frames, bands].
    """
    size = 1024
    hop = (2 * RATE - 200 - size) // frames
    edges = np.geomspace(60, RATE / 2, bands + 2)
    frequencies = np.fft.rfftfreq(size, 1 / RATE)
    rising = (frequencies[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies[None]) / (edges[2:] - edges[1:-1])[:, None]
    # Where a band is narrower than the distance of two frequencies, it takes the next one.
    filters = np.maximum(np.minimum(rising, falling), 0)
    nearest = np.abs(frequencies[None] - edges[1:-1, None]).argmin(1)
    filters[np.arange(bands), nearest] = np.maximum(filters[np.arange(bands), nearest], 1e-2)
    found = []
    for seed in range(count):
        sound = music(seed)
        cut = np.stack([sound[i * hop : i * hop + size] for i in range(frames)])
        power = np.abs(np.fft.rfft(cut * np.hanning(size))) ** 2 @ filters.T
        levels = np.log10(np.maximum(power, power.max() * 1e-8))
        found.append((levels - levels.max() + 4) / 4)
    return np.asarray(found, np.float32)


def words(count: int, shape: tuple[int, int], vocabulary: int, seed: int = 0) -> np.ndarray:
    """Return word ids by Zipf's law, int32 [count, *shape]; the last of a text is its end."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, vocabulary)
    drawn = rng.choice(vocabulary - 1, (count, *shape), p=weights / weights.sum())
    drawn[..., -1] = vocabulary - 1
    return drawn.astype(np.int32)
