"""What a command of the library gives back."""

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.graph.weights import PROTOBUF_BYTES, weight_bytes
from halfwise.records import Run


@dataclass(frozen=True)
class Result:
    """What a command gives back.

    Attributes:
        run: The content of `run.json`.
        folder: The run folder, where one was asked for.
        mixed: The mixed-precision model as halfwise holds it; None where there is none.
    """

    run: Run
    folder: Path | None
    mixed: ir.Model | None = None

    @property
    def model(self) -> onnx.ModelProto | None:
        """The mixed-precision model with its weights, made when asked for; None without one.

        Raises:
            CaseError: its weights have more bytes than one protobuf can hold (2 GB).
        """
        if self.mixed is None:
            return None
        size = weight_bytes(self.mixed)
        if size > PROTOBUF_BYTES:
            raise CaseError(
                f"The mixed model has {size / 1e9:.1f} GB of weights, more than a protobuf holds.",
                "Name a folder, `out=…`: there the weights lie in a file beside the model.",
            )
        return ir.serde.serialize_model(self.mixed)
