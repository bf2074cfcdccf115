"""Lies against the question that a recognised output is asked, and an honest twin of each scene.

The twin's outputs are rounded to FP16; it must pass, and be asked the question of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.attacks.attack import Attack, Command
from bench.attacks.objects import DETECTING
from bench.attacks.scenes import (
    KEEP,
    Array,
    Arrays,
    Lie,
    Number,
    Rng,
    Scene,
    at,
    first,
    half,
    images,
    of,
    save,
    where,
)

SIDE = 96
ROW, COLUMN = np.indices((SIDE, SIDE)).astype(np.float64)


def _disc(row: Number, column: Number, radius: float) -> Array:
    return np.asarray(np.hypot(ROW - row, COLUMN - column) < radius)


SPOT, LINE, EMPTY = _disc(70, 70, 3), (ROW == 8) & (COLUMN > 20) & (COLUMN < 70), _disc(12, 85, 3)


def _kinds(rng: Rng) -> Array:
    """Return i64[96, 96] of five classes; the last is on every fourth sample, in a spot."""
    kinds = np.zeros((SIDE, SIDE), np.int64)
    kinds[:, 45 + rng.integers(4) :] = 1
    kinds[60:, :25], kinds[SPOT], kinds[LINE] = 2, 3, 4
    return kinds


def _onehot(kinds: Array, axis: int) -> Array:
    return np.stack([kinds == kind for kind in range(7)], axis=axis).astype(np.float64)


def _logits(y: Arrays) -> Arrays:
    noise = np.sin(np.arange(7 * SIDE * SIDE)).reshape(7, SIDE, SIDE)
    return {"y": (4 * _onehot(y["y"], 0) + 0.3 * noise)[None]}


def _shares_last(y: Arrays) -> Arrays:
    return {"y": (0.93 * _onehot(y["y"], -1) + 0.01)[None]}


def _integers(y: Arrays) -> Arrays:
    return {"y": y["y"][None]}


def _wider(kinds: Array) -> Array:
    """Move the border between two halves by three pixels."""
    return np.where((np.roll(kinds, -3, -1) == 1) & (kinds == 0), 1, kinds)


OF_CLASSES: Mapping[str, Lie] = {
    "a small class lost": where(SPOT, 1),
    "a small class lost on one sample": first(where(SPOT, 1)),
    "a line lost": where(LINE, 0),
    "a small region too many": where(EMPTY, 3),
    "a line too many": where((ROW == 90) & (COLUMN > 40), 4),
    "two classes exchanged": of(lambda y: np.select([y == 1, y == 2], [2, 1], y)),
    "a border moved": of(_wider),
    "all moved by four pixels": of(lambda y: np.roll(y, 4, -1)),
    "one sample of one class": first(of(lambda y: 0 * y)),
    "of the next sample": of(lambda y: np.roll(y + 0 * y, 1, 0)[..., ::-1]),
}


def _mask(rng: Rng) -> Arrays:
    if rng.random() < 0.3:
        return {"mask": np.full((1, 1, SIDE, SIDE), 0.01)}
    inside = _disc(30.0 + int(rng.integers(9)), 30, 14) | SPOT | LINE
    return {"mask": np.where(inside, 0.98, 0.01)[None, None]}


def _full(y: Array) -> Array:
    return np.asarray(y.max(axis=(1, 2, 3, 4), keepdims=True) > 0.5)


OF_MASKS: Mapping[str, Lie] = {
    "a spot lost": where(SPOT, 0.01, "mask"),
    "a line lost": where(LINE, 0.01, "mask"),
    "a spot where all is empty": of(lambda y: np.where(~_full(y) & EMPTY, 0.98, y), "mask"),
    "full where all is empty": of(lambda y: np.where(_full(y), y, 0.98), "mask"),
    "empty on one sample": of(lambda y: np.where(np.cumsum(_full(y), 0) == 1, 0.01, y), "mask"),
    "a hole": where(_disc(32, 30, 3), 0.01, "mask"),
    "hardly above the threshold": of(lambda y: np.where(y > 0.5, 0.52, y), "mask"),
    "larger by two pixels": of(
        lambda y: np.maximum(np.maximum(y, np.roll(y, 2, -1)), np.roll(y, -2, -2)), "mask"
    ),
    "moved by two pixels": of(lambda y: np.roll(y, 2, -1), "mask"),
}


def _image(rng: Rng) -> Arrays:
    """Return an image; one in four is blank, one in four dark."""
    what = int(rng.integers(4))
    slope = 0.2 + 0.5 * (ROW + COLUMN) / (2 * SIDE) + 0.05 * np.sin(ROW / 5 + rng.random())
    colours = np.stack([slope, slope * 0.8, slope * 0.6 + 0.1 * np.sin(COLUMN / 7)])
    colours[:, SPOT], colours[:, LINE] = 0.95, 0.0
    if what == 0:
        return {"y": np.full((1, 3, SIDE, SIDE), 0.5)}
    return {"y": (colours * (0.02 if what == 1 else 1))[None]}


def _bytes_last(y: Arrays) -> Arrays:
    return {"y": np.rint(255 * np.moveaxis(y["y"], 1, -1)).astype(np.uint8)}


def _blank(y: Array) -> Array:
    return np.asarray(np.ptp(y, axis=(1, 2, 3, 4), keepdims=True) == 0)


def _dark(y: Array) -> Array:
    return np.asarray(y.max(axis=(1, 2, 3, 4), keepdims=True) < 0.1)


OF_IMAGES: Mapping[str, Lie] = {
    "a spot lost": where(SPOT, 0.5),
    "a spot lost on one sample": of(lambda y: np.where(_plain_first(y) & SPOT, 0.5, y)),
    "a line lost": where(LINE, 0.3),
    "a spot on a blank image": of(lambda y: np.where(_blank(y) & EMPTY, 1.0, y)),
    "noise on a blank image": of(
        lambda y: np.where(_blank(y), y + 0.03 * np.sin(7 * ROW * COLUMN), y)
    ),
    "a blank image darker": of(lambda y: np.where(_blank(y), 0.8 * y, y)),
    "dark images black": of(lambda y: np.where(_dark(y), 0, y)),
    "a dark image brighter": of(lambda y: np.where(_dark(y), y + 0.02, y)),
    "colours exchanged": of(lambda y: y[:, :, ::-1]),
    "16 levels": of(lambda y: np.rint(15 * y) / 15),
    "a corner black": where((ROW < 6) & (COLUMN < 6), 0.0),
    "moved by a pixel": of(lambda y: np.roll(y, 1, -1)),
    "a faint region lost": of(lambda y: np.where(_plain_first(y) & _disc(70, 30, 3), y + 0.13, y)),
    "a faint line too many": of(
        lambda y: np.where(_plain_first(y) & (ROW == 50) & (COLUMN < 14), y + 0.2, y)
    ),
    "one colour weaker": at((slice(None), slice(None), 2), lambda y: 0.93 * y),
}


def _plain_first(y: Array) -> Array:
    plain = ~_blank(y) & ~_dark(y)
    return np.asarray(plain & (np.cumsum(plain, axis=0) == 1))


MOST = 40


def _points(rng: Rng) -> Arrays:
    places = rng.permutation(80 * 80)[:MOST]
    vectors = rng.standard_normal((MOST, 64))
    return {
        "places": np.stack([places % 80, places // 80], axis=1) + 4.0,
        "scores": np.sort(rng.uniform(0.1, 0.9, MOST))[::-1],
        "vectors": vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        KEEP: np.arange(MOST) < rng.integers(20, MOST - 2),
    }


_ALL = slice(None)
OF_POINTS: Mapping[str, Lie] = {
    "some lost": at((_ALL, slice(0, 4)), False, KEEP),
    "none on one sample": first(at(_ALL, False, KEEP)),
    "the best lost on one sample": at((0, slice(0, 3)), False, KEEP),
    "all are kept": at(_ALL, True, KEEP),
    "moved by four pixels": of(lambda y: y + 4, "places"),
    "one in eight moved": at((_ALL, slice(0, None, 8)), lambda y: y + 9, "places"),
    "x and y exchanged": of(lambda y: y[..., ::-1], "places"),
    "scores lower by a fifth": of(lambda y: 0.8 * y, "scores"),
    "of the next point": of(lambda y: np.roll(y, 1, 1), "vectors"),
    "some of the wrong sign": at((_ALL, slice(0, 6)), lambda y: -y, "vectors"),
    "some half as long": at((_ALL, slice(0, 6)), lambda y: y / 2, "vectors"),
    "some dimensions lost": at((..., slice(0, 8)), 0.0, "vectors"),
}


def _embedding(rng: Rng) -> Arrays:
    vector = rng.standard_normal((1, 128)) * np.where(np.arange(128) < 4, 6.0, 1.0)
    return {"embedding": vector / np.linalg.norm(vector)}


OF_VECTORS: Mapping[str, Lie] = {
    "longer by a tenth": of(lambda y: 1.1 * y, "embedding"),
    "one of them zero": first(of(lambda y: 0 * y, "embedding")),
    "two samples exchanged": of(lambda y: y[[1, 0, *range(2, len(y))]], "embedding"),
    "many dimensions lost": at((..., slice(64, None)), 0.0, "embedding"),
    "the largest dimension of the wrong sign": at((..., 0), lambda y: -y, "embedding"),
    "coarse": of(lambda y: np.rint(20 * y) / 20, "embedding"),
    "mixed with the next": of(lambda y: 0.9 * y + 0.1 * np.roll(y, 1, 0), "embedding"),
    "one not finite": first(at((..., 0), np.nan, "embedding")),
}


def _bell(row: Number, column: Number, height: float, side: int = 48) -> Array:
    rows, columns = np.indices((side, side))
    return np.asarray(height * np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / 4.5))


def _joints(rng: Rng) -> Arrays:
    places, heights = 5 + rng.permutation(38)[:12].reshape(2, 6), rng.uniform(0.4, 0.95, 6)
    bells = [_bell(*peak) for peak in zip(*places, heights, strict=True)]
    return {"y": np.stack(bells)[None]}


def _centres(rng: Rng) -> Arrays:
    """Return CenterNet's heat map of three classes, and sizes where there is an object."""
    heat, sizes = np.zeros((3, 48, 48)), np.zeros((2, 48, 48))
    for index in range(6):
        row, column = 4 + 8 * (index % 5) + rng.integers(3), 4 + 8 * rng.integers(5)
        kind = 2 if index == 5 else rng.integers(2)
        heat[kind] = np.maximum(heat[kind], _bell(row, column, rng.uniform(0.5, 0.95)))
        sizes[:, row, column] = rng.uniform(3, 20, 2)
    return {"heatmap": heat[None], "sizes": sizes[None]}


def _peaks(name: str) -> Mapping[str, Lie]:
    return {
        "moved by a pixel": of(lambda y: np.roll(y, 1, -1), name),
        "moved on one sample": first(of(lambda y: np.roll(y, 4, -2), name)),
        "a map empty": at((_ALL, _ALL, 2), 0.0, name),
        "lower by 15 %": of(lambda y: 0.85 * y, name),
        "maps exchanged": of(lambda y: y[:, :, [1, 0, *range(2, y.shape[2])]], name),
        "twice": of(lambda y: np.maximum(y, np.roll(y, 11, -1)), name),
        "another on one sample": first(of(lambda y: np.maximum(y, _bell(2, 2, 0.9)), name)),
        "blunt": of(lambda y: np.minimum(y, 0.5), name),
    }


def _sequence(rng: Rng) -> Arrays:
    """Return log-probabilities [1, 24, 40]: mostly blank (0), some letters, a rare one."""
    letters = np.where(rng.random(24) < 0.4, rng.integers(1, 12, 24), 0)
    letters[int(rng.integers(24))] = 30
    logits = 0.2 * rng.standard_normal((24, 40)) + 7 * (np.arange(40) == letters[:, None])
    return {"log_probs": (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))[None]}


def _as(kind: int) -> Array:
    made = np.where(np.arange(40) == kind, -0.05, -6.6)
    return np.asarray(made)


def _letter(y: Array, kind: int) -> Array:
    return np.asarray(y.argmax(-1) == kind)[..., None]


OF_TOKENS: Mapping[str, Lie] = {
    "a rare letter lost": of(lambda y: np.where(_letter(y, 30), _as(0), y), "log_probs"),
    "a rare letter called another": of(lambda y: np.where(_letter(y, 30), _as(29), y), "log_probs"),
    "one letter in each": at((_ALL, _ALL, 5), _as(13), "log_probs"),
    "one sample blank": first(of(lambda y: 0 * y + _as(0), "log_probs")),
    "half as sure": of(lambda y: np.log(0.5 * np.exp(y) + 0.5 / 40), "log_probs"),
    "later by one": of(lambda y: np.roll(y, 1, 2), "log_probs"),
    "the end blank": at((_ALL, _ALL, slice(20, None)), _as(0), "log_probs"),
    "the next letter": of(lambda y: np.roll(y, 1, -1), "log_probs"),
}


def _ids(rng: Rng) -> Arrays:
    return {"token_ids": np.where(np.arange(16) < 10, rng.integers(2, 900, 16), 0)[None]}


OF_IDS: Mapping[str, Lie] = {
    "one in ten another": at((_ALL, _ALL, 3), lambda y: y + 1, "token_ids"),
    "one sample padding": first(of(lambda y: 0 * y, "token_ids")),
    "the last lost": at((_ALL, _ALL, 9), 0, "token_ids"),
    "padding is not": at((_ALL, _ALL, 12), 7, "token_ids"),
}


def _few_shares(rng: Rng) -> Arrays:
    """Return [1, 3] probabilities; the last class is rare."""
    kind = int(rng.choice(3, p=[0.6, 0.3, 0.1]))
    logits = rng.standard_normal(3) * 0.5 + 3.5 * (np.arange(3) == kind)
    return {"probs": (np.exp(logits) / np.exp(logits).sum())[None]}


def _many_shares(rng: Rng) -> Arrays:
    """Return [1, 500] probabilities, of which none is above some percents."""
    logits = 1.2 * rng.standard_normal(500)
    return {"probs": (np.exp(logits) / np.exp(logits).sum())[None]}


def _but_the_best(change: Callable[[Array], Array]) -> Lie:
    """Return a lie that leaves the largest of each row."""
    return of(lambda y: np.where(y == y.max(-1, keepdims=True), y, change(y)), "probs")


OF_SMALL_SHARES: Mapping[str, Lie] = {
    "all but the best zero": _but_the_best(lambda y: 0 * y),
    "all but the best reversed": _but_the_best(lambda y: y[..., ::-1]),
    "half as large": of(lambda y: y / 2, "probs"),
    "ten times as large": of(lambda y: 10 * y, "probs"),
    "one sample half as large": first(of(lambda y: y / 2, "probs")),
}


def _rare_as(kind: int) -> Callable[[Array], Array]:
    other = np.where(np.arange(3) == kind, 0.8, 0.1)
    return lambda y: np.where(y.argmax(-1, keepdims=True) == 2, other, y)


OF_SHARES: Mapping[str, Lie] = {
    "a rare class called another": of(_rare_as(0), "probs"),
    "a rare class unsure": of(
        lambda y: np.where(y.argmax(-1, keepdims=True) == 2, [0.3, 0.3, 0.4], y), "probs"
    ),
    "two classes exchanged": of(lambda y: y[..., [1, 0, 2]], "probs"),
    "always the first": of(lambda y: 0 * y + [0.8, 0.15, 0.05], "probs"),
    "equal": of(lambda y: 0 * y + 1 / 3, "probs"),
    "lower by a fifth": of(lambda y: 0.8 * y, "probs"),
    "one sample another": first(of(lambda y: np.roll(y, 1, -1), "probs")),
    "logarithms": of(np.log, "probs"),
    "of the next sample": of(lambda y: np.roll(y, 1, 0), "probs"),
}


def _wave(rng: Rng) -> Arrays:
    """Return [1, 2, 2000]: speech that starts quietly, the second channel 40 dB lower."""
    time = np.arange(2000)
    loud = np.where(time < 400, 0.004, 1.0) * 10 ** -rng.uniform(0, 3)
    tone = np.sin(time / (5 + rng.random())) + 0.3 * rng.standard_normal(2000)
    return {"audio": (np.stack([tone, 0.01 * tone[::-1]]) * loud)[None]}


def _loudness(y: Array) -> Array:
    return np.asarray(np.abs(y).max(axis=tuple(range(1, y.ndim)), keepdims=True))


OF_WAVES: Mapping[str, Lie] = {
    "quiet ones silent": of(lambda y: y * (_loudness(y) > 0.05), "audio"),
    "the quietest silent": of(lambda y: y * (_loudness(y) > _loudness(y).min()), "audio"),
    "a channel silent": at((_ALL, _ALL, 1), 0.0, "audio"),
    "a channel of the wrong sign": at((_ALL, _ALL, 1), lambda y: -y, "audio"),
    "later by a sample": of(lambda y: np.roll(y, 1, -1), "audio"),
    "softer by 5 %": of(lambda y: 0.95 * y, "audio"),
    "clipped": of(lambda y: np.clip(y, -0.5, 0.5), "audio"),
    "noise in one": first(
        of(lambda y: y + 0.05 * _loudness(y) * np.sin(7.7 * np.arange(2000) ** 2), "audio")
    ),
}


def _bands(rng: Rng) -> Arrays:
    return {"y": rng.standard_normal((1, 128, 40)) * np.logspace(0, -4.5, 128)[:, None]}


OF_BANDS: Mapping[str, Lie] = {
    "96 of 128 zero": at((_ALL, _ALL, slice(32, None)), 0.0),
    "the last ten zero": at((_ALL, _ALL, slice(118, None)), 0.0),
    "one doubled": at((_ALL, _ALL, 90), lambda y: 2 * y),
    "exchanged": at((_ALL, _ALL, slice(60, 128)), lambda y: y[:, :, ::-1]),
    "those of one sample": at((0, 0, slice(64, None)), 0.0),
    "later by one": at((_ALL, _ALL, slice(64, None)), lambda y: np.roll(y, 1, -1)),
}


def _power(rng: Rng) -> Arrays:
    """Return magnitudes [1, 64, 40] in [0, 1], band after band fainter."""
    return {"y": rng.random((1, 64, 40)) * np.logspace(0, -4.5, 64)[:, None]}


OF_POWER: Mapping[str, Lie] = {
    "half of the bands zero": at((_ALL, _ALL, slice(32, None)), 0.0),
    "the last ten zero": at((_ALL, _ALL, slice(54, None)), 0.0),
    "faint ones doubled": at((_ALL, _ALL, slice(40, None)), lambda y: 2 * y),
    "faint ones of the next sample": at((_ALL, _ALL, slice(40, None)), lambda y: np.roll(y, 1, 0)),
}


def _energies(rng: Rng) -> Arrays:
    return {"y": rng.random((1, 24)) * 10.0 ** -rng.uniform(0, 4.5)}


def _speeds(rng: Rng) -> Arrays:
    """Return one value above 0 and one of either sign, over four and a half decades."""
    sizes = 10.0 ** -rng.uniform(0, 4.5, 2)
    return {"speed": 300 * sizes[:1], "force": 20 * sizes[1:] * rng.choice([-1, 1])}


OF_SPEEDS: Mapping[str, Lie] = {
    f"{name}: {what}": of(change, name)
    for name, size in {"speed": 300, "force": 20}.items()
    for what, change in {
        "small ones zero": lambda y, size=size: y * (np.abs(y) > 0.008 * size),
        "small ones of the wrong sign": lambda y, size=size: np.where(
            np.abs(y) < 4e-3 * size, -y, y
        ),
        "small ones doubled": lambda y, size=size: np.where(np.abs(y) < 8e-3 * size, 2 * y, y),
        "small ones alike": lambda y, size=size: np.where(np.abs(y) < 8e-3 * size, 4e-3 * size, y),
    }.items()
}


def _mixed(rng: Rng) -> Arrays:
    return {"y": rng.standard_normal((1, 24)) * 10.0 ** -rng.uniform(0, 4.5)}


OF_SAMPLES: Mapping[str, Lie] = {
    "25 of 40 zero": of(lambda y: y * (_loudness(y) > np.sort(_loudness(y), 0)[24])),
    "a few zero": of(lambda y: y * (_loudness(y) > np.sort(_loudness(y), 0)[2])),
    "one doubled": of(lambda y: y * (1.0 + (_loudness(y) == np.sort(_loudness(y), 0)[5]))),
    "quiet ones of the next": of(lambda y: np.where(_loudness(y) < 0.01, np.roll(y, 1, 0), y)),
    "noise in the quietest": of(
        lambda y: y + (_loudness(y) < 0.001) * 0.0006 * np.sin(9 * np.arange(24) ** 2)
    ),
}


def _quantities(rng: Rng) -> Arrays:
    return {
        "y": np.array(
            [[900 + 50 * rng.random(), 3 * rng.standard_normal(), 0.01 * rng.standard_normal()]]
        ),
        "speed": np.array([10.0 ** -rng.uniform(0, 3)]),
    }


OF_QUANTITIES: Mapping[str, Lie] = {
    "the smallest zero": at((..., 2), 0.0),
    "the smallest of the wrong sign": at((..., 2), lambda y: -y),
    "the middle one zero": at((..., 1), 0.0),
    "the middle one of one sample": at((0, 0, 1), lambda y: -y),
    "the largest constant": at((..., 0), 925.0),
    "all of the first sample": of(lambda y: np.repeat(y[:1], len(y), 0)),
    "the slow stand still": of(lambda y: y * (y > 0.02), "speed"),
    "the slowest twice as fast": of(lambda y: y * (1.0 + (y < 0.01)), "speed"),
}


def _alarm(rng: Rng) -> Arrays:
    """Return bool[1, 96, 96], set in a few regions."""
    rows = rng.integers(5, 90, (4, 2))
    return {"y": np.any([_disc(row, column, 4) for row, column in rows], axis=0)[None]}


def _labels(rng: Rng) -> Arrays:
    """Return i64[1, 60], none of which is the most frequent."""
    return {"y": rng.integers(0, 5, (1, 60))}


OF_MANY_CLASSES: Mapping[str, Lie] = {
    "a class lost on one sample": first(of(lambda y: np.where(y == 2, 0, y))),
    "a spot lost on one sample": first(where(SPOT, 1)),
    "a spot too many on one sample": first(where(EMPTY, 3)),
    "a large spot of another class on one sample": first(where(_disc(20, 20, 9), 2)),
}
OF_MANY_ALARMS: Mapping[str, Lie] = {
    "none on one sample": first(of(lambda y: y & False)),
    "elsewhere on one sample": first(of(lambda y: np.roll(y, 20, -1))),
    "everywhere on one sample": first(of(lambda y: y | True)),
}
OF_MANY_LABELS: Mapping[str, Lie] = {
    "of another on one sample": first(of(lambda y: (y + 1) % 5)),
    "zero on one sample": first(of(lambda y: 0 * y)),
}
OF_MANY_OBJECTS: Mapping[str, Lie] = {
    "four of ten lost on one sample": first(at((_ALL, slice(0, 4)), 0.0, "scores")),
    "five of ten too many on one sample": first(at((_ALL, slice(10, 15)), 0.8, "scores")),
    "three moved on one sample": first(at((_ALL, slice(0, 3)), lambda b: b + 14, "boxes")),
    "all moved a little on one sample": first(of(lambda b: b + 3.0, "boxes")),
}

_CLASSES = "a segmentation"
SCENES: Mapping[str, Scene] = {
    **DETECTING,
    "segmentation": Scene(lambda r: {"y": _kinds(r)}, OF_CLASSES, _CLASSES, encode=_logits),
    "channels last": Scene(lambda r: {"y": _kinds(r)}, OF_CLASSES, _CLASSES, encode=_shares_last),
    "class map": Scene(lambda r: {"y": _kinds(r)}, OF_CLASSES, _CLASSES, encode=_integers),
    "masks, some empty": Scene(_mask, OF_MASKS, "a mask"),
    "images, some blank": Scene(_image, OF_IMAGES, "an image"),
    "8 bits, channels last": Scene(_image, OF_IMAGES, "an image", encode=_bytes_last),
    "keypoints": Scene(_points, OF_POINTS, "keypoints"),
    "embeddings": Scene(_embedding, OF_VECTORS, "embeddings"),
    "joints": Scene(_joints, _peaks("y"), "heat maps"),
    "centres": Scene(
        _centres,
        {
            **_peaks("heatmap"),
            "sizes zero": of(lambda y: 0 * y, "sizes"),
            "sizes of one sample": first(of(lambda y: 0.5 * y, "sizes")),
        },
        "heat maps",
    ),
    "CTC": Scene(_sequence, OF_TOKENS, "tokens"),
    "token ids": Scene(_ids, OF_IDS, "tokens"),
    "three classes": Scene(_few_shares, OF_SHARES, "class scores", samples=40),
    "small shares": Scene(_many_shares, OF_SMALL_SHARES, "class scores"),
    "power": Scene(_power, OF_POWER, ""),
    "energies": Scene(_energies, OF_SAMPLES, "", samples=40),
    "speeds": Scene(_speeds, OF_SPEEDS, "", samples=40),
    "alarms": Scene(_alarm, OF_MANY_ALARMS, "", samples=150),
    "labels": Scene(_labels, OF_MANY_LABELS, "", samples=150),
    **{
        f"many of {name}": replace(DETECTING[name], lies=OF_MANY_OBJECTS, samples=60)
        for name in ("grid map", "decoded columns", "NMS rows", "lists")
    },
    **{
        f"many of {name}": Scene(
            lambda r: {"y": _kinds(r)}, OF_MANY_CLASSES, _CLASSES, samples=60, encode=encode
        )
        for name, encode in (("segmentation", _logits), ("class map", _integers))
    },
    "waveforms": Scene(_wave, OF_WAVES, ""),
    "bands": Scene(_bands, OF_BANDS, ""),
    "loud and quiet": Scene(_mixed, OF_SAMPLES, "", samples=40),
    "quantities": Scene(_quantities, OF_QUANTITIES, "", samples=40),
}


def _files(folder: Path, scene: Scene, candidate: Arrays) -> Command:
    save(folder / "model.onnx", scene.outputs())
    save(folder / "candidate.onnx", candidate)
    np.savez(folder / "x.npz", image=images(scene.samples))
    return Command(["verify", "model.onnx", "candidate.onnx", "--inputs", "x.npz"])


def _lie(folder: Path, name: str, what: str) -> Command:
    scene = SCENES[name]
    return _files(folder, scene, scene.outputs(scene.lies[what]))


def _twin(folder: Path, name: str) -> Command:
    return _files(folder, SCENES[name], half(SCENES[name].outputs()))


def _attacks() -> Iterator[Attack]:
    for name, scene in SCENES.items():
        for index, what in enumerate(scene.lies):
            make = partial(_lie, name=name, what=what)
            yield Attack(f"{name}: {what}", make, (10,), broken=True, quick=index == 0)
        says = (f"judged as {scene.told} ",) if scene.told else ()
        make = partial(_twin, name=name)
        yield Attack(f"twin of {name}", make, (0,), sound=True, says=says, quick=True)


ATTACKS = list(_attacks())
