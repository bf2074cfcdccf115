"""The messages of TensorRT 8.5 to 11 that are known: builder, ONNX parser, runtime and trtexec.

With what Polygraphy says of a comparison, and a shell of a process that crashed.

The wordings are from logs that users published; each message names such a report or the
documentation. The first message whose pattern is found counts, so special ones come first.
"""

from halfwise.tensorrt.log.messages.building import BUILDING
from halfwise.tensorrt.log.messages.crashes import CRASHES, STOPPED
from halfwise.tensorrt.log.messages.engines import ENGINES
from halfwise.tensorrt.log.messages.environment import ENVIRONMENT
from halfwise.tensorrt.log.messages.message import Message
from halfwise.tensorrt.log.messages.parsing import PARSING
from halfwise.tensorrt.log.messages.polygraphy import POLYGRAPHY
from halfwise.tensorrt.log.messages.precision import PRECISION
from halfwise.tensorrt.log.messages.shapes import SHAPES

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
