"""What `import tensorrt` gives, in the version that is played."""

import math

from tests.fake_tensorrt import builder, engine, enums, inspector, logger, network, parser
from tests.fake_tensorrt.enums import NUMPY, DataType
from tests.fake_tensorrt.versions import SNAPSHOT, VERSION

_MODULES = (builder, engine, enums, inspector, logger, network, parser)

__version__ = VERSION


class INormalizationLayer(network.ILayer):
    pass


class ICastLayer(network.ILayer):
    pass


def init_libnvinfer_plugins(logger, namespace):
    return True


def nptype(trt_type):
    try:
        return NUMPY[trt_type].type
    except KeyError:
        text = f"Could not resolve TensorRT datatype to an equivalent numpy datatype: {trt_type}"
        raise TypeError(text) from None


def volume(iterable):
    return math.prod(iterable)


def _names():
    found = {name: kind for module in _MODULES for name, kind in vars(module).items()}
    found |= {"INormalizationLayer": INormalizationLayer, "ICastLayer": ICastLayer}
    there = {*SNAPSHOT["classes"], *SNAPSHOT["enums"]}
    found = {name: kind for name, kind in found.items() if name in there}
    types = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}
    return found | {types.get(kind.name, kind.name.lower()): kind for kind in DataType}


globals().update(_names())
__all__ = [*_names(), "init_libnvinfer_plugins", "nptype", "volume"]  # noqa: PLE0604 - made above
