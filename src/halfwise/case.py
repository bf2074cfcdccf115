"""A case: a network, real samples in two parts, what is acceptable, and how to look for a plan."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from sys import getsizeof
from typing import Any, Literal, Protocol

import numpy as np
import onnx_ir as ir
from msgspec import Struct, field
from numpy.typing import NDArray

from halfwise.declarations import default
from halfwise.errors import CaseError
from halfwise.formats import FP16, Format
from halfwise.graph.aside import Aside
from halfwise.graph.conversion import Stored
from halfwise.graph.dataflow import reaching
from halfwise.graph.model import Network
from halfwise.graph.weights import LARGE_MODEL_BYTES
from halfwise.metrics import Metric, Outputs
from halfwise.records import (
    Allowed,
    Criterion,
    MadeUp,
    NodeName,
    Note,
    Profile,
    Repair,
    TensorName,
    Typing,
    replace,
)

Sample = Mapping[str, NDArray[Any]]
"""One set of model inputs: input name → array of the model's own rank and dtype."""

FEW_SAMPLES = 4
"""Samples on which something is measured or tried that depends on the model more than on data, or
is wrong on most if it is wrong: elements, decisions, the model with everything low. Our choice."""
TOGETHER = 3
"""Samples that run alone and together, which shows whether they are independent: with three, their
order shows too."""
HELD_BYTES = 8 << 20
"""Samples, or tensors at a cut, that stay in memory between trials: those of one sample of a
detector at 640 × 640. Reading a sample of a few kilobytes takes as long as a tenth of its run;
larger ones would be seen in the peak memory (`bench/overhead.py`, `peak.py`)."""


class Samples(Struct, frozen=True):
    """A sequence of samples, each loaded when it is requested.

    Attributes:
        ids: One identifier per sample, shown to the user, such as `inputs.npz[3]`.
        load: Returns sample i; called any number of times, it must return the same each time.
        labels: One label per sample for the metric, or None.
        marks: The first 16 digits of each sample's SHA-256, or None if not computed.
    """

    ids: tuple[str, ...]
    load: Callable[[int], Sample]
    labels: tuple[Any, ...] | None = None
    marks: tuple[str, ...] | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample:
        """Return sample `index` (0 ≤ index < len)."""
        if not 0 <= index < len(self.ids):
            raise IndexError(index)
        return self.load(index)

    def __iter__(self) -> Iterator[Sample]:
        """Yield every sample in order."""
        return (self.load(i) for i in range(len(self.ids)))

    def select(self, indices: Sequence[int]) -> "Samples":
        """Return the samples at `indices`, in that order."""
        chosen = tuple(indices)
        return Samples(
            ids=tuple(self.ids[i] for i in chosen),
            load=lambda i: self.load(chosen[i]),
            labels=None if self.labels is None else tuple(self.labels[i] for i in chosen),
            marks=None if self.marks is None else tuple(self.marks[i] for i in chosen),
        )

    def held(self) -> "Samples":
        """Return the same samples; those loaded last stay loaded, and are the same objects again.

        As many as `HELD_BYTES` hold, and at least one.
        """
        return self if isinstance(self.load, _Held) else replace(self, load=_Held(self.load))

    def with_progress(self, step: Callable[[int, int, str], None]) -> "Samples":
        """Return the same samples; each calls `step(index, their number, "samples")` first."""

        def load(index: int) -> Sample:
            step(index, len(self), "samples")
            return self.load(index)

        return replace(self, load=load)

    def marked(self, marks: Collection[str]) -> tuple[int, ...]:
        """Return the indices of samples with one of `marks`; empty without marks."""
        return tuple(i for i, mark in enumerate(self.marks or ()) if mark in marks)

    def __add__(self, other: "Samples") -> "Samples":
        """Return both in sequence; labels and marks remain only if both have them."""
        count = len(self)
        both = self.labels is not None and other.labels is not None
        marked = self.marks is not None and other.marks is not None
        return Samples(
            ids=self.ids + other.ids,
            load=lambda i: self.load(i) if i < count else other.load(i - count),
            labels=(self.labels or ()) + (other.labels or ()) if both else None,
            marks=(self.marks or ()) + (other.marks or ()) if marked else None,
        )


class _Held:
    """Loads samples, and keeps the latest."""

    def __init__(self, load: Callable[[int], Sample]) -> None:
        self._load, self._kept, self._bytes = load, OrderedDict[int, Sample](), 0

    def __call__(self, index: int) -> Sample:
        if index in self._kept:
            self._kept.move_to_end(index)
            return self._kept[index]
        sample = self._kept[index] = self._load(index)
        self._bytes += _bytes_of(sample)
        while self._bytes > HELD_BYTES and len(self._kept) > 1:
            self._bytes -= _bytes_of(self._kept.popitem(last=False)[1])
        return sample


def _bytes_of(sample: Sample) -> int:
    texts = (text for array in sample.values() if array.dtype.hasobject for text in array.flat)
    return sum(array.nbytes for array in sample.values()) + sum(map(getsizeof, texts))


class Column(Sequence[NDArray[Any]]):
    """One input over all samples, each loaded when it is requested."""

    def __init__(self, samples: Samples, name: str) -> None:
        self._samples, self._name = samples, name

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as of a sequence
        """Return the input of sample `index` (0 ≤ index < len).

        Raises:
            CaseError: that sample lacks it.
        """
        sample = self._samples[index]
        if self._name not in sample:
            raise CaseError(
                f"{self._samples.ids[index]} has no input '{self._name}'; the first sample has.",
                "Give the same inputs for every sample.",
            )
        return sample[self._name]


_Shown = tuple[dict[str, NDArray[Any]], Mapping[TensorName, Any]]


class Probe(Protocol):
    """A session of the FP32 model that shows the extrema of its tensors: `ExtremaProbe`."""

    def run(self, sample: Sample) -> _Shown:
        """Return the outputs and the extrema of tensors; raises `RunFailed`."""

    def release(self) -> None:
        """Free the session; another run loads it again."""


class Seen(Struct, frozen=True):
    """What the FP32 model showed on the first samples, if its outputs decided the metric.

    Attributes:
        model: The model.
        samples: Their identifiers; none if it did not run.
        results: Their outputs, and the extrema of tensors.
        probe: Runs further samples.
    """

    model: ir.Model
    samples: tuple[str, ...]
    results: tuple[_Shown, ...]
    probe: Probe

    def on(
        self, model: ir.Model, samples: Samples, tensors: Collection[TensorName]
    ) -> tuple[_Shown, ...] | None:
        """Return the results if `samples` begin with these, and these tensors are observed."""
        known = model is self.model and samples.ids[: len(self.samples)] == self.samples
        observed = all(shown.keys() == set(tensors) for _, shown in self.results[:1])
        return self.results if known and observed else None


class Case(Struct, frozen=True):
    """What a run works on.

    Attributes:
        network: The FP32 model; an FP16 or BF16 export is widened.
        calibration: Samples that the search may use.
        heldout: Samples for the verdict; empty if there was only one sample.
        criterion: What is acceptable.
        metric: The task metric that `criterion.metric` names, or None.
        notes: Remarks on how model and inputs were understood, and warnings.
        data_sha256: Hash of all samples.
        real: False for random inputs, and for noise in a file.
        made_up: Inputs that look generated; empty for random ones.
        stored: What the user's file stores in FP16 or BF16.
        repairs: Repairs made in `network`, in order.
        restored: Whether `network` is the original of a quantised model, not the user's own.
        aside: What was set aside of the user's model, and is written back.
        seen: What is known of the first calibration samples, if anything.
    """

    network: Network
    calibration: Samples
    heldout: Samples
    criterion: Criterion
    metric: Metric | None
    notes: tuple[Note, ...]
    data_sha256: str
    real: bool = True
    made_up: tuple[MadeUp, ...] = ()
    stored: Stored = field(default_factory=Stored)
    repairs: tuple[Repair, ...] = ()
    restored: bool = False
    aside: Aside | None = None
    seen: Seen | None = None

    @property
    def users_metric(self) -> Metric | None:
        """The metric that the user named; else FP32 has to give the same numbers elsewhere."""
        return None if self.criterion.recognised else self.metric

    @property
    def whole(self) -> Network:
        """The network with what was set aside."""
        return self.network if self.aside is None else self.aside.whole

    @property
    def supplied(self) -> tuple[TensorName, ...]:
        """Inputs that the user's model lacks: numbers for what was set aside."""
        return () if self.aside is None else self.aside.supplied

    @property
    def suppressed(self) -> frozenset[str]:
        """Outputs with what a suppression of overlapping boxes chose, a plugin's or ONNX's own."""
        chosen = (
            value
            for node in self.whole.nodes()
            if "NonMaxSuppression" in node.op_type or "NMS" in node.op_type
            for value in node.outputs
        )

        def onward(value: ir.Value) -> list[ir.Value]:
            return [output for user, _ in value.uses() for output in user.outputs]

        outputs = {value.name for value in self.network.graph.outputs}
        return frozenset(v.name for v in reaching(chosen, onward) if v.name and v.name in outputs)

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every input, on the first sample."""
        return {name: array.shape for name, array in self.calibration[0].items()}


class Rules(Struct, frozen=True):
    """The user's rules.

    Attributes:
        keep: Node names or regular expressions (full match), or the word "outputs".
        keep_op: Operator types; those in `PATTERNS` match their decomposed forms too.
        lower: Node names or regular expressions (full match).
        only: Whether every node is low that may be.
    """

    keep: tuple[str, ...] = ()
    keep_op: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()
    only: bool = False


class Runtime(Struct, frozen=True):
    """Where models run in ONNX Runtime.

    Attributes:
        device: "cpu" or "cuda".
        libraries: Custom operator libraries to register.
    """

    device: str = default("device")
    libraries: tuple[Path, ...] = ()


CPU = Runtime()


class Built(Struct, frozen=True):
    """What a builder made of a file that cannot run on this machine.

    Attributes:
        folded: Products that the file has in FP32 and the engine computes from low operands.
        refused: Why it was built only with the samples' shapes fixed; "" if it was built as it is.
        traffic: Bytes that its kernels read and write in an inference; None if unknown.
    """

    folded: tuple[NodeName, ...] = ()
    refused: str = ""
    traffic: int | None = None


class FileRunner(Protocol):
    """Runs models as they are written, or builds them where they cannot run."""

    @property
    def name(self) -> str:
        """Its name, as in "when NAME runs the file", with what it is set to in parentheses."""

    @property
    def runs(self) -> bool:
        """Whether it computes outputs; else it only builds."""

    @property
    def version(self) -> str:
        """The version of its software.

        Raises:
            BackendMissing: it cannot be asked.
        """

    def run(self, model: ir.Model, samples: Samples) -> Sequence[Outputs] | Built:
        """Return the outputs of each sample, or what was built for their shapes.

        Args:
            model: A typed model, as it is written.
            samples: Inputs in the types of the model's.

        Raises:
            CaseError: it refuses the model.
            RunFailed: it fails, or takes too long.
        """

    def close(self) -> None:
        """End its process, if it has one."""


class Chosen(Struct, frozen=True):
    """A plan chosen by the user.

    Attributes:
        kept: The nodes that it keeps.
        rule: The user's request, as reasons state it.
        bf16: Those of them in BF16.
        tf32: Whether all FP32 products are TF32.
    """

    kept: frozenset[NodeName]
    rule: str
    bf16: frozenset[NodeName] = frozenset()
    tf32: bool = False

    def beside(self, explained: frozenset[NodeName]) -> dict[NodeName, str]:
        """Return the nodes that only the choice explains, with the rule."""
        return dict.fromkeys(self.kept - explained, self.rule)


class Settings(Struct, frozen=True):
    """Settings of the search for a plan.

    Attributes:
        rules: User rules.
        chosen: The plan to use instead of searching.
        fmt: The low format.
        int8: Whether nodes get INT8 where it is enough, once a plan with the low format passes.
        io: Type of float graph inputs and outputs: FP32 or the low format. With "fp32", those that
            the user's file stores in the low format keep it.
        accumulate: Format of running sums inside FP16 ops.
        no_repair: Whether the graph stays as it is.
        keep_islands: Whether nodes that the file has in FP32 among lower ones stay so.
        allow: What is done only on request: see `Allowed`.
        allow_random: Whether a plan counts that passes on inputs that are not real.
        allow_unjudged: Whether a plan counts although the samples leave something untested.
        headroom: Exceeding the range at this many times the observed values counts as overflow.
        margin: Fraction of the tolerance available to the search. A minimal plan uses all of it,
            and 26 of 56 plans at the full tolerance failed on unseen samples (see the docs).
        budget: Work limit of the search, in inferences over the calibration samples.
        time_budget: Time limit of the search in seconds, however much work is left.
        runtime: Where models run.
        targets: What else has to run or build the file.
        large_from: Bytes of float weights in files from which they are rounded on disk.
    """

    rules: Rules = Rules()
    chosen: Chosen | None = None
    fmt: Format = FP16
    int8: bool = False
    io: Literal["fp32", "fp16", "bf16"] = default("io")
    accumulate: Literal["fp32", "fp16"] = default("accumulate")
    no_repair: bool = False
    keep_islands: bool = False
    allow: frozenset[Allowed] = frozenset()
    allow_random: bool = False
    allow_unjudged: bool = False
    headroom: float = default("headroom")
    margin: float = default("margin")
    budget: float = default("budget")
    time_budget: float = default("time_budget")
    runtime: Runtime = CPU
    targets: tuple[FileRunner, ...] = ()
    large_from: int = LARGE_MODEL_BYTES


class EngineSettings(Struct, frozen=True):
    """How engines are built and judged.

    Attributes:
        typing: Typing regime; None for the default of the worker's TensorRT.
        profiles: Optimization profiles; empty for those of the data.
        workspace_bytes: Largest workspace of one layer; None for TensorRT's default.
        optimization_level: Builder optimisation level; None for TensorRT's default.
        tactic_sources: Names of tactic sources; None for TensorRT's default.
        plugins: Plugin libraries on the worker.
        builds: Builds of the delivered plan, including the delivered one.
        max_builds: Builds for the search for a plan, without comparisons and confirmations.
        build_timeout: Seconds for one build.
        run_timeout: Seconds for one inference, timing or inspection.
        tf32: Whether FP32 in mixed engines may be TF32; otherwise kept means FP32.
    """

    typing: Typing | None = None
    profiles: tuple[Profile, ...] = ()
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    plugins: tuple[str, ...] = ()
    builds: int = default("builds")
    max_builds: int = default("max_builds")
    build_timeout: float = default("build_timeout")
    run_timeout: float = default("run_timeout")
    tf32: bool = False


def hash_sample(sample: Sample) -> str:
    """Return the SHA-256 of a sample, in hexadecimal.

    It covers each input's name, dtype, shape and bytes (so -0.0 differs from 0.0). It does not
    cover identifiers, labels, the order of inputs or their layout in memory: the same data from
    another file has the same hash.
    """
    digest = hashlib.sha256(f"{len(sample)} inputs\n".encode())
    for name, array in sorted(sample.items()):
        # The length separates the name from what follows.
        digest.update(f"{len(name)}:{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(_content(array))
    return digest.hexdigest()


def hash_together(hashes: Sequence[str]) -> str:
    """Return one SHA-256, in hexadecimal, of the hashes of samples and of their order."""
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _content(array: NDArray[Any]) -> bytes | memoryview:
    if array.dtype.kind == "O":
        return "".join(f"{len(text)}:{text}" for text in array.flat).encode()
    return np.ravel(np.asarray(array, order="C")).view(np.uint8).data
