"""Forms of everything that a worker may send: types and value ranges, without further fields."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from halfwise.tensorrt.versions import WRITTEN
from halfwise.tensorrt.worker.worker import ITEM_BYTES, PROTOCOL

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=1 << 20)]
Word = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=4096)]
"""One line, without control characters."""
Size = Annotated[int, Field(ge=0, lt=1 << 62)]
Few = Annotated[int, Field(ge=0, lt=1 << 31)]
Dims = Annotated[list[Annotated[int, Field(ge=-1, lt=1 << 48)]], Field(max_length=64)]
Milliseconds = Annotated[float, Field(ge=0, le=1e12)]


class Answer(BaseModel):
    """Part of a worker's message, with exactly these fields and types."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Line(Answer):
    """A line of a log."""

    severity: Literal["verbose", "info", "warning", "error", "internal_error", "output"]
    text: str


class Progress(Answer):
    """Progress of a build."""

    phase: Text
    done: Few
    total: Few


class ParserError(Answer):
    """One error of the ONNX parser."""

    node: Text
    op: Text
    text: Text
    index: int = -1


class Refusal(Answer):
    """Why a request cannot be done."""

    code: Annotated[str, Field(pattern="^[a-z-]{1,40}$")]
    message: Text
    hint: Text = ""
    log: Annotated[list[Text], Field(max_length=1000)] = []
    errors: list[ParserError] = []


class Death(Answer):
    """How the working process ended."""

    reason: Literal["signal", "exit", "timeout", "closed"]
    signal: Annotated[str, Field(pattern="^(SIG[A-Z0-9+-]{1,20}|signal [0-9]{1,3})$")] | None
    status: Annotated[int, Field(ge=0, le=255)] | None


class Nothing(Answer):
    """A frame with only its kind."""


class Gpu(Answer):
    """A GPU."""

    index: Few
    name: Word
    compute_capability: Annotated[str, Field(pattern=r"^\d{1,3}\.\d{1,3}$")]
    uuid: Word
    memory: Size
    free: Size


class Hello(Answer):
    """What is available to the worker."""

    protocol: Literal[PROTOCOL]  # type: ignore[valid-type]  # a constant
    python: Annotated[str, Field(pattern=r"^\d+\.\d+[\w.+]{0,40}$")]
    executable: Word
    machine: Word
    host: Word
    cache: Annotated[Word, Field(min_length=1)]
    driver: Word | None
    environment: Annotated[dict[Word, Word], Field(max_length=10)]
    tensorrt: Annotated[str, Field(pattern=f"^{WRITTEN.pattern}$", max_length=64)] | None
    typing: Annotated[list[Literal["weak", "strong"]], Field(max_length=2)]
    tactic_sources: Annotated[list[Word], Field(max_length=100)]
    features: Annotated[dict[Word, bool], Field(max_length=100)]
    gpus: Annotated[list[Gpu], Field(max_length=64)]
    import_error: Refusal | None = None
    cuda_error: Refusal | None = None


class Missing(Answer):
    """Files that the worker lacks."""

    missing: list[Sha256]


class Chunk(Answer):
    """A part of a file; its bytes follow."""

    total: Size


class File(Answer):
    """A file that the worker keeps."""

    sha256: Sha256
    bytes: Size
    path: Word


class Built(Answer):
    """An engine, its timing cache, and the layers before fusion."""

    engine: File
    timing_cache: File
    timing_cache_fits: bool
    seconds: Annotated[float, Field(ge=0, le=1e8)]
    layers: list[Annotated[tuple[Text, Word, list[Text], bool], Field(strict=False)]]
    unconstrained: dict[Text, Text]


class Limits(Answer):
    """Sizes of one input in a profile; values of a shape tensor."""

    min: Dims
    opt: Dims
    max: Dims


class Port(Answer):
    """An input or output of an engine; a profile without limits for it is empty."""

    name: Annotated[Text, Field(min_length=1)]
    mode: Literal["input", "output"]
    dtype: Annotated[str, Field(pattern="^[a-z0-9_]{1,32}$")]
    shape: Dims
    location: Literal["host", "device"]
    shape_tensor: bool
    linear: bool
    profiles: Annotated[list[Limits | Nothing], Field(max_length=10_000)]


class Described(Answer):
    """An engine's description of itself."""

    io: Annotated[list[Port], Field(max_length=100_000)]
    profiles: Annotated[int, Field(ge=0, le=10_000)]
    layers: Few
    device_bytes: Size


class Output(Answer):
    """An array; its bytes follow."""

    name: Text
    dtype: Literal[*ITEM_BYTES]  # type: ignore[valid-type]  # a table
    shape: Annotated[list[Size], Field(max_length=64)]
    debug: bool


class Ran(Answer):
    """The outputs of a run."""

    outputs: list[Output]
    seen: list[Text]


class Timed(Answer):
    """Latencies of an engine."""

    iterations: Annotated[int, Field(ge=1, lt=1 << 31)]
    median_ms: Milliseconds
    p99_ms: Milliseconds
    transfer_median_ms: Milliseconds
    transfer_p99_ms: Milliseconds
    per_second: Annotated[float, Field(ge=0, le=1e12)]
    device_bytes: Size


class Inspected(Answer):
    """Times of layers; the inspector's text follows."""

    milliseconds: dict[Text, Milliseconds]


KINDS: Mapping[str, type[BaseModel]] = {
    "log": Line,
    "progress": Progress,
    "waiting": Nothing,
    "started": Nothing,
    "error": Refusal,
    "died": Death,
}
"""Forms of all frames except results, by kind."""
