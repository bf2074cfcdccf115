"""TensorRT for RTX: its parser and its builder, ahead of time, on a machine without a GPU."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from tests.judges.kernels import Kernel, kernels
from tests.judges.place import FOLDER
from tests.judges.worker import Crashed, Judge

_WORKER = Path(__file__).with_name("rtx_worker.py")

Profile = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""The least, the usual and the largest shape of an input; of a shape input, its values."""


@dataclass(frozen=True)
class Refusal:
    """What the parser, the builder or the process said of a failure.

    Attributes:
        text: Its words.
        node: Name of the node; "" where none was named.
        operator: Its operator, "" likewise.
    """

    text: str
    node: str = ""
    operator: str = ""


@dataclass(frozen=True)
class Build:
    """The outcome of a build.

    Attributes:
        parsed: Whether the parser took the model.
        engine: The serialised engine, None where none was built.
        errors: Why not, in the order in which they were told.
        warnings: What parser and builder warned of.
        kernels: The engine's kernels.
    """

    parsed: bool
    engine: bytes | None = field(repr=False)
    errors: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    kernels: tuple[Kernel, ...] = ()

    @property
    def built(self) -> bool:
        """Whether there is an engine."""
        return self.engine is not None


class RtxBuilder(Judge):
    """Builds models with strong typing and without TF32, all in one process."""

    def __init__(self, folder: Path = FOLDER / "rtx") -> None:
        super().__init__(
            folder, "get-rtx", [sys.executable, str(_WORKER)], {"PYTHONPATH": str(folder)}
        )

    @property
    def version(self) -> str:
        """The version of the installed package, such as "1.7.1.116"."""
        found = metadata.distributions(path=[str(self._folder)])
        return next(each.version for each in found if "bindings" in each.name)

    def build(
        self,
        model: Path,
        sm: str = "SM86",
        shapes: Mapping[str, Profile] | None = None,
        *,
        seconds: float = 300,
    ) -> Build:
        """Return what becomes of a model.

        Args:
            model: An ONNX file; external weights lie beside it.
            sm: The compute capability to build for, SM75 to SM121.
            shapes: Shapes by input. An axis of another input that depends on the data is taken as
                1 to 8.
            seconds: A build that takes longer is given up, and has failed.
        """
        with tempfile.TemporaryDirectory() as folder:
            log, engine = Path(folder) / "log", Path(folder) / "engine"
            request = {
                "model": str(model.resolve()),
                "sm": sm,
                "shapes": {name: list(map(list, s)) for name, s in (shapes or {}).items()},
                "log": str(log),
                "engine": str(engine),
            }
            try:
                answer = self._worker.ask(request, seconds)
            except Crashed as crash:
                return Build(parsed=False, engine=None, errors=(Refusal(str(crash)),))
            return Build(
                parsed=answer["parsed"],
                engine=engine.read_bytes() if engine.exists() else None,
                errors=tuple(Refusal(**error) for error in answer["errors"]),
                warnings=tuple(answer["warnings"]),
                kernels=kernels(log.read_text(encoding="utf-8").splitlines()),
            )
