"""Makes the folder of basic_pitch, which transcribes music: the model and windows of audio.

    python -m bench.gpu.basic_pitch DIR

makes DIR/basic_pitch/model.onnx and inputs.npz, by `pip download` of two packages: basic-pitch
holds the model, pygame recordings in its examples. Of the windows, seven are of these recordings
(a piece of house music, also at twice its speed, and an explosion), five are music made here.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

MODEL = ("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx")
SOUNDS = "pygame==2.6.1"
RECORDINGS = (("house_lo.wav", 1), ("house_lo.wav", 2), ("boom.wav", 1))
"""Files of pygame's examples, with a speed; all are 8-bit mono at 11025 Hz."""
RATE, WINDOW = 22050, 43844
"""Window of basic_pitch: 1.99 s."""
INPUT = "serving_default_input_2:0"
MADE = 5

Sound = NDArray[np.float32]


def windows(sound: Sound) -> list[Sound]:
    """Return a sound in windows [43844, 1] that do not overlap, the last one filled with zeros."""
    count = -(-len(sound) // WINDOW)
    padded = np.pad(sound, (0, count * WINDOW - len(sound)))
    return list(padded.reshape(count, WINDOW, 1))


def recording(data: bytes, speed: int) -> Sound:
    """Return an 8-bit mono wave file resampled to 22050 Hz, `speed` times as fast."""
    with wave.open(io.BytesIO(data)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
        up = RATE // file.getframerate()
    found = resample_poly((samples.astype(np.float32) - 128) / 128, up, speed)
    return np.asarray(found, np.float32)


def music(seed: int) -> Sound:
    """Return a window of chords whose notes have overtones that fade, over quiet noise."""
    draw, time = np.random.default_rng(seed), np.arange(WINDOW) / RATE
    sound = draw.normal(scale=1e-3, size=WINDOW)
    for begin in np.arange(0, time[-1], draw.uniform(0.2, 0.5)):
        since = np.maximum(time - begin, 0)
        for note in draw.choice(np.arange(40, 84), draw.integers(1, 5), replace=False):
            pitch = 440 * 2 ** ((note - 69) / 12)
            for overtone in range(1, 8):
                fade = (time >= begin) * np.exp(-since * draw.uniform(2, 6) * overtone**0.5)
                sound += fade * np.sin(2 * np.pi * pitch * overtone * since) / overtone**1.5
    return np.asarray(0.7 * sound / np.abs(sound).max(), np.float32)


def make(folder: Path) -> None:
    """Write the model and its inputs into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as wheels:
        words = ["pip", "download", "-q", "--no-deps", "-d", wheels, MODEL[0], SOUNDS]
        subprocess.run([sys.executable, "-m", *words], check=True)
        found = {path.name.partition("-")[0]: path for path in Path(wheels).glob("*.whl")}
        with zipfile.ZipFile(found["basic_pitch"]) as wheel:
            (folder / "model.onnx").write_bytes(wheel.read(MODEL[1]))
        with zipfile.ZipFile(found["pygame"]) as wheel:
            real = [
                window
                for name, speed in RECORDINGS
                for window in windows(recording(wheel.read(f"pygame/examples/data/{name}"), speed))
            ]
    made = [music(seed).reshape(WINDOW, 1) for seed in range(MADE)]
    # Every fourth is held out, so recordings and synthetic music alternate.
    order = sorted([*enumerate(real), *((2 * i + 0.5, w) for i, w in enumerate(made))], key=_place)
    arrays: dict[str, Any] = {INPUT: np.stack([w for _, w in order])[:, np.newaxis]}
    np.savez(folder / "inputs.npz", **arrays)


def _place(entry: tuple[float, Sound]) -> float:
    return entry[0]


def main() -> None:
    """Make the folder that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, help="gets the folder basic_pitch")
    make(parser.parse_args().models / "basic_pitch")


if __name__ == "__main__":
    main()
