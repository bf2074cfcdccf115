"""Outputs of a framework that had other inputs: is the change named, and nothing else blamed?

Small models with random weights, each hard in its own way (one number, one number per image that
fills a map, outputs that are saturated or do not depend on order or scale), over crops of
scikit-learn's sample photos. The framework's outputs are the model's own on inputs with one or two
changes that must be named, or with another fault (gamma, crops, blur, other weights ...) that must
not be named as one. Each named change is checked on other photos too: if it is right there, it
explains the outputs, whatever its name.

With the published models, the same on their own inputs.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from scipy.ndimage import gaussian_filter

from bench.figures import Figure, at_least, equal, reported
from bench.runs import Workbench
from halfwise.case import Case, Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import OTHER_KERNELS
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.progress import Silent
from halfwise.records import Criterion
from halfwise.tools.diagnose.harness import CODE_FILE, changed_inputs
from halfwise.tools.diagnose.subject import Subject
from halfwise.tools.preprocessing.changes import transformation

SEED = 11
CHANGES, FAULTS = 90, 90
SIDE, OTHERS = 40, 4
COUNTS = (2, 3, 6)
"""Samples of a trial."""
NORMS: dict[str, tuple[float, Any, Any]] = {
    "pixels": (1.0, 0.0, 1.0),
    "1/255": (1 / 255, 0.0, 1.0),
    "ImageNet": (1 / 255, np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])),
    "-1..1": (1 / 255, 0.5, 0.5),
    "CLIP": (
        1 / 255,
        np.array([0.48145466, 0.4578275, 0.40821073]),
        np.array([0.26862954, 0.26130258, 0.27577711]),
    ),
    "Caffe": (1.0, np.array([123.68, 116.779, 103.939]), 1.0),
}
MOVES: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "reshaped": lambda x: x.transpose(1, 2, 0).reshape(x.shape),
    "own": lambda x: (x - x.mean()) / x.std(),
}
ALTERED: dict[str, Callable[[Any, Any], Any]] = {
    "mirrored": lambda p, _: p[:, ::-1],
    "gamma 1.02": lambda p, _: 255 * (p / 255) ** 1.02,
    "gamma 1.2": lambda p, _: 255 * (p / 255) ** 1.2,
    "gamma 2.2": lambda p, _: 255 * (p / 255) ** 2.2,
    "crop by 1": lambda p, _: np.pad(p, ((0, 1), (0, 0), (0, 0)), mode="edge")[1:],
    "crop by 4": lambda p, _: np.pad(p, ((0, 4), (0, 4), (0, 0)), mode="edge")[4:, 4:],
    "half the size": lambda p, _: p[::2, ::2].repeat(2, 0).repeat(2, 1),
    "blur": lambda p, _: gaussian_filter(p, (0.6, 0.6, 0)),
    "channels 1 2 0": lambda p, _: p[..., [1, 2, 0]],
    "channels 0 0 0": lambda p, _: p[..., [0, 0, 0]],
    "contrast 0.9": lambda p, _: 0.9 * (p - 127.5) + 127.5,
    "10 brighter": lambda p, _: p + 10,
    "a little brighter": lambda p, _: p + 0.6,
    "noise": lambda p, draw: p + draw.normal(size=p.shape) * 4,
    "1/250": lambda p, _: p * 255 / 250,
    "a grey patch": lambda p, _: np.where(np.indices(p.shape)[0] < len(p) // 4, 128, p),
    "one channel lost": lambda p, _: p * [1, 0, 1],
}
WEIGHTS = ("one weight", "all weights", "the last bias")
ORDER, FACTOR = "samples in another order", "a factor of the outputs"


@dataclass(frozen=True)
class Trial:
    """What to compute on which inputs, and what the framework had.

    Attributes:
        kind: The model, a key of `KINDS`.
        norm: The normalisation of the samples, a key of `NORMS`.
        count: How many samples.
        to_norm: That of the framework.
        bgr: "" or where its channels are reversed: "before" the normalisation or "after" it.
        move: A key of `MOVES`.
        fault: None of these: a key of `ALTERED`, one of `WEIGHTS`, `ORDER`, `FACTOR`; or "".
        seed: Of weights and photos.
    """

    kind: str
    norm: str
    count: int
    to_norm: str
    bgr: str = ""
    move: str = ""
    fault: str = ""
    seed: int = 0


def trials(seed: int = SEED) -> list[Trial]:
    """Return the trials: changes that must be named, then faults that must not be."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    found = []
    for i in range(CHANGES):
        kind, norm, count = draw.choice(list(KINDS)), draw.choice(list(NORMS)), draw.choice(COUNTS)
        to_norm, bgr, move = norm, "", ""
        what = draw.choice(["bgr", "norm", "norm", "bgr+norm", "move", "bgr+move"])
        if "norm" in what:
            to_norm = draw.choice([n for n in NORMS if n != norm])
        if "bgr" in what:
            bgr = draw.choice(["before", "after"]) if "move" not in what else "after"
        if "move" in what:
            move = draw.choice([m for m in MOVES if m])
        found.append(Trial(kind, norm, count, to_norm, bgr, move, seed=i))
    for i in range(FAULTS):
        kind, norm, count = draw.choice(list(KINDS)), draw.choice(list(NORMS)), draw.choice(COUNTS)
        fault = draw.choice([*ALTERED, *WEIGHTS, ORDER, FACTOR])
        count = max(count, 2) if fault == ORDER else count
        found.append(Trial(kind, norm, count, norm, fault=fault, seed=CHANGES + i))
    return found


def made(pixels: Any, norm: str, bgr: str = "", move: str = "") -> Any:
    """Return f32[1, 3, h, w] of pixels [h, w, 3] from 0 to 255."""
    scale, mean, deviation = NORMS[norm]
    x = pixels[..., ::-1] if bgr == "before" else pixels
    x = (x * scale - mean) / deviation
    x = x[..., ::-1] if bgr == "after" else x
    return np.ascontiguousarray(MOVES[move](x.transpose(2, 0, 1))[None], np.float32)


def photos() -> list[Any]:
    """Return scikit-learn's two photos, u8[427, 640, 3].

    Raises:
        ImportError: scikit-learn or Pillow is missing.
    """
    from sklearn.datasets import load_sample_images  # noqa: PLC0415 - may be missing

    return list(load_sample_images().images)


def crops(raws: Sequence[Any], count: int, draw: Any) -> list[Any]:
    """Return crops f64[40, 40, 3] of photos at drawn places, every third or sixth pixel."""
    found = []
    for _ in range(count):
        raw, step = raws[draw.integers(len(raws))], int(draw.choice([3, 6]))
        top, left = (int(draw.integers(n - SIDE * step)) for n in raw.shape[:2])
        cut = raw[top : top + SIDE * step : step, left : left + SIDE * step : step]
        found.append(cut.astype(np.float64))
    return found


class Net:
    """A model under construction: `op` adds a node."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def weights(self, *shape: int, scale: float = 1.0) -> str:
        """Add drawn weights with a deviation of `scale` over the root of their fan-in."""
        size = scale / math.sqrt(math.prod(shape[1:]))
        return self.constant(self.draw.normal(size=shape) * size)

    def constant(self, array: Any) -> str:
        """Add a constant, f32."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def op(self, op: str, *operands: str, **attributes: Any) -> str:
        """Add a node; return its output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], **attributes))
        return name

    def body(self, x: str, channels: int = 3) -> str:
        """Add three convolutions; return a map of 16 channels."""
        for width in (8, 16, 16):
            x = self.op(
                "Conv", x, self.weights(width, channels, 3, 3, scale=1.6),
                self.weights(width, scale=0.2), strides=[2, 2], pads=[1, 1, 1, 1],
            )  # fmt: skip
            x, channels = self.op("Relu", x), width
        return x

    def head(self, x: str, outputs: int, scale: float = 1.0) -> str:
        """Add pooling and a product."""
        flat = self.op("Flatten", self.op("GlobalAveragePool", x))
        return self.op(
            "Gemm", flat, self.weights(outputs, 16, scale=scale), self.weights(outputs), transB=1
        )

    def model(self, output: str) -> onnx.ModelProto:
        """Return the model; input `images` f32[n, 3, h, w]."""
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "g",
            [value("images", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
            [helper.make_empty_tensor_value_info(output)],
            self.constants,
        )
        opset = helper.make_opsetid("", 17)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
        return onnx.shape_inference.infer_shapes(model)


def _brightness(net: Net, x: str) -> str:
    """One number per image, spread over a map of 64 values: a change that fits one fits all."""
    grey = net.op("ReduceMean", net.op("GlobalAveragePool", x), axes=[1], keepdims=1)
    return net.op("Tanh", net.op("Mul", grey, net.weights(1, 1, 8, 8)))


def _instance(net: Net, x: str) -> str:
    normed = net.op("InstanceNormalization", x, net.constant(np.ones(3)), net.constant(np.zeros(3)))
    return net.head(net.body(normed), 10)


def _grey(net: Net, x: str) -> str:
    return net.head(net.body(net.op("ReduceMean", x, axes=[1], keepdims=1), 1), 10)


def _faint(net: Net, x: str) -> str:
    faint = net.op("Mul", net.head(net.body(x), 10), net.constant(2e-3))
    return net.op("Add", faint, net.constant(np.ones(10)))


KINDS: dict[str, Callable[[Net, str], str]] = {
    "classifier": lambda net, x: net.head(net.body(x), 10),
    "two classes, saturated": lambda net, x: net.op("Softmax", net.head(net.body(x), 2, 8.0)),
    "map": lambda net, x: net.op("Sigmoid", net.body(x)),
    "one number": lambda net, x: net.head(net.body(x), 1),
    "brightness": _brightness,
    "instance norm": _instance,
    "grey": _grey,
    "faint": _faint,
}


@dataclass(frozen=True)
class Told:
    """The result of a trial.

    Attributes:
        trial: The trial.
        what: "same" where the outputs match without a change; "right", or "as good" for another
            than was made, where the change that is named gives the framework's outputs on other
            photos too; "wrong" where it does not; "few" where one matches on too few samples to
            be named; "none".
    """

    trial: Trial
    what: str


def run_trial(trial: Trial, raws: Sequence[Any]) -> Told:
    """Return the result of a trial on photos."""
    draw = np.random.default_rng((SEED, trial.seed))
    net = Net(draw)
    proto = net.model(KINDS[trial.kind](net, "images"))
    pixels = crops(raws, trial.count + OTHERS, draw)
    given = [made(p, trial.norm) for p in pixels]
    altered = [ALTERED[trial.fault](p, draw) if trial.fault in ALTERED else p for p in pixels]
    theirs = [made(p, trial.to_norm, trial.bgr, trial.move) for p in altered]
    wanted = _outputs(_faulty(proto, trial.fault, draw), theirs)
    if trial.fault == ORDER:
        wanted = [*wanted[1 : trial.count], wanted[0], *wanted[trial.count :]]
    if trial.fault == FACTOR:
        wanted = [{name: 1.3 * array for name, array in each.items()} for each in wanted]
    return Told(trial, _named(network_from_proto(proto), given, theirs, wanted, trial.count))


def _named(network: Any, given: list[Any], theirs: list[Any], wanted: list[Any], count: int) -> str:
    (name,) = (str(v.name) for v in network.graph.inputs)
    samples = Samples(tuple(map(str, range(count))), lambda i: {name: given[i]})
    case = Case(network, samples, samples.select(()), Criterion(), None, (), "")
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(case, Settings(), Path(folder), Silent(), expected=wanted[:count])
        verdict = subject.against_framework
        assert verdict is not None
        if verdict.passed:
            return "same"
        found = changed_inputs(subject)
        if found is None or not found.matches:
            few = found is not None and found.best is not None and found.best.error <= OTHER_KERNELS
            return "few" if few else "none"
        change = transformation((Path(folder) / CODE_FILE).read_text(encoding="utf-8"))
    mapped = [change(x) for x in given[count:]]
    for x, expected in zip(mapped, wanted[count:], strict=True):
        result = subject.session.run({name: x})
        for output, array in expected.items():
            # A picture without content gives outputs of rounding errors only.
            whole = np.stack([each[output] for each in wanted])
            gap = np.sqrt(np.mean(np.square(result[output] - array)))
            if gap > 10 * OTHER_KERNELS * np.sqrt(np.mean(np.square(whole))):
                return "wrong"
    pairs = zip(mapped, theirs[count:], strict=True)
    exact = all(np.abs(x - y).max() <= 1e-4 * np.ptp(y) for x, y in pairs)
    return "right" if exact else "as good"


def _outputs(proto: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    session = Session(network_from_proto(proto).model, optimise=True)
    return [session.run({"images": x}) for x in inputs]


def _faulty(proto: onnx.ModelProto, fault: str, draw: Any) -> onnx.ModelProto:
    if fault not in WEIGHTS:
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    constants = changed.graph.initializer
    chosen = {
        "one weight": [constants[0]],
        "all weights": list(constants),
        "the last bias": [constants[-1]],
    }[fault]
    for constant in chosen:
        array = numpy_helper.to_array(constant).copy()
        if fault == "one weight":
            array.flat[draw.integers(array.size)] += 0.5
        else:
            array = array * (1 + 0.05 * draw.normal(size=array.shape))
        constant.CopyFrom(numpy_helper.from_array(array.astype(np.float32), constant.name))
    return changed


PUBLISHED: dict[str, tuple[tuple[str, bool, Callable[[Any], Any]], ...]] = {
    "yolox_nano": (
        ("BGR", True, lambda x: x[:, ::-1]),
        ("ImageNet", True, lambda x: _imagenet(x / 255)),
        ("BGR and 1/255", True, lambda x: x[:, ::-1] / 255),
        ("reshaped", True, lambda x: x[0].transpose(1, 2, 0).reshape(x.shape)),
        ("gamma 1.1", False, lambda x: 255 * (x / 255) ** 1.1),
    ),
    "ppocr_v3_det": (
        ("BGR", True, lambda x: x[:, ::-1]),
        ("1/255", True, lambda x: _imagenet(x, back=True)),
        ("crop by 2", False, lambda x: np.roll(x, 2, axis=3)),
    ),
}
"""What the framework had, whether it must be named, and how the published inputs become it."""


def _imagenet(x: Any, *, back: bool = False) -> Any:
    _, mean, deviation = NORMS["ImageNet"]
    mean, deviation = mean[:, None, None], deviation[:, None, None]
    return x * deviation + mean if back else (x - mean) / deviation


def _published(bench: Workbench) -> dict[str, dict[str, str]]:
    """Return what is named, by model and change; two samples to look at, two for checking."""
    found: dict[str, dict[str, str]] = {}
    for name, members in PUBLISHED.items():
        subject = bench.real(name)
        if subject is None:
            continue
        network = load_network(subject.model)
        session = Session(network.model, optimise=True)
        ((key, stored),) = np.load(subject.inputs).items()
        given = [
            np.ascontiguousarray(x[..., 160:416, 160:416] if "ocr" in name else x) for x in stored
        ]
        for what, _, change in members:
            theirs = [np.ascontiguousarray(change(x), np.float32) for x in given]
            wanted = [session.run({key: x}) for x in theirs]
            found.setdefault(name, {})[what] = _named(network, given, theirs, wanted, 2)
    return found


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Run all trials."""
    try:
        raws = photos()
    except ImportError as error:
        return [], f"{error.name} is not installed (pip install --group bench)"
    started = time.monotonic()
    told = [run_trial(trial, raws) for trial in trials()]
    changes = Counter(t.what for t in told if not t.trial.fault)
    faults = Counter(t.what for t in told if t.trial.fault)
    published = _published(bench)
    wanted = [
        published[name][what] in ("right", "as good")
        for name, members in PUBLISHED.items()
        for what, named, _ in members
        if named and name in published
    ]
    accused = sum(
        published[name][what] not in ("none", "same", "few")
        for name, members in PUBLISHED.items()
        for what, named, _ in members
        if not named and name in published
    )
    seen = sum(n for what, n in changes.items() if what not in ("same", "few"))
    explained = changes["right"] + changes["as good"]
    note = f"of {seen}, where there are enough samples; {changes['as good']} by one as good"
    figures = [
        at_least("share of changed inputs named", explained / seen, 0.95, note),
        reported("changed inputs said to be too few to tell", changes["few"]),
        equal("changed inputs named wrongly", changes["wrong"], 0),
        equal(
            "other faults named as changed inputs",
            faults["wrong"] + faults["right"],
            0,
            f"of {sum(faults.values()) - faults['same']} that change the outputs",
        ),
        reported("other faults that a change undoes on other photos too", faults["as good"]),
        reported("seconds", time.monotonic() - started),
    ]
    if wanted:
        figures.append(equal("published models: changes named", sum(wanted), len(wanted)))
        figures.append(equal("published models: other faults named as changes", accused, 0))
    bench.details["expected"] = {
        "seed": SEED,
        "missed": [
            vars(t.trial) for t in told if not t.trial.fault and t.what in ("none", "wrong")
        ],
        "accused": [
            vars(t.trial) | {"what": t.what}
            for t in told
            if t.trial.fault and t.what not in ("none", "same", "few")
        ],
        "published": published,
    }
    return figures, None if wanted else bench.missing(tuple(PUBLISHED))
