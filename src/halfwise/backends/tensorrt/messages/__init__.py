"""The messages of TensorRT 8.5 to 11 that are known: builder, ONNX parser, runtime and trtexec.

With what Polygraphy says of a comparison, and a shell of a process that crashed.

The wordings are from logs that users published; each message names such a report or the
documentation. The first message whose pattern is found counts, so special ones come first.
"""

from halfwise.backends.tensorrt.messages.building import BUILDING
from halfwise.backends.tensorrt.messages.crashes import CRASHES, STOPPED
from halfwise.backends.tensorrt.messages.engines import ENGINES
from halfwise.backends.tensorrt.messages.environment import ENVIRONMENT
from halfwise.backends.tensorrt.messages.message import Message
from halfwise.backends.tensorrt.messages.parsing import PARSING
from halfwise.backends.tensorrt.messages.polygraphy import POLYGRAPHY
from halfwise.backends.tensorrt.messages.precision import PRECISION
from halfwise.backends.tensorrt.messages.shapes import SHAPES

KNOWN: tuple[Message, ...] = (
    *PRECISION,
    *PARSING,
    *SHAPES,
    *ENGINES,
    *ENVIRONMENT,
    *BUILDING,
    *POLYGRAPHY,
    *CRASHES,
)

__all__ = ["KNOWN", "STOPPED", "Message"]
