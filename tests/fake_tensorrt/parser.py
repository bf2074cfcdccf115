"""The ONNX parser."""

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from tests.fake_tensorrt import faults
from tests.fake_tensorrt.enums import ErrorCode, Severity, data_type
from tests.fake_tensorrt.logger import need_logger
from tests.fake_tensorrt.model import Refused, read_model
from tests.fake_tensorrt.operators import KNOWN
from tests.fake_tensorrt.versions import NUMBERS, bound


def _read_beside(tensor, folder):
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return
    entries = {entry.key: entry.value for entry in tensor.external_data}
    data = (folder / entries["location"]).read_bytes()
    start = int(entries.get("offset", 0))
    tensor.raw_data = data[start : start + int(entries.get("length", len(data)))]
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def quantisation_fault(node, constants):
    """Return what the importer says of a node that quantises otherwise than it can, else ""."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return ""
    stored, _, zero = (constants.get(name) for name in [*node.input, ""][:3])
    old = NUMBERS < (9,)
    if old and len(node.input) < 3:
        return "This version of TensorRT requires 3 inputs for the DequantizeLinear operator."
    if old and zero is not None and zero.data_type == onnx.TensorProto.UINT8:
        return "Found invalid input type of UINT8"
    if zero is not None and onnx.numpy_helper.to_array(zero).any():
        return "TRT only supports symmetric quantization - zeroPt must be all zeros"
    if stored is not None and stored.data_type == onnx.TensorProto.INT32:
        return f"{node.name}: only activation types allowed as input to this layer."
    return ""


def kernel_fault(node, constants):
    """Return what 8.6 says of a Conv of computed weights without its kernel's size, else ""."""
    sized = any(attribute.name == "kernel_shape" for attribute in node.attribute)
    if node.op_type != "Conv" or sized or node.input[1] in constants or NUMBERS >= (9,):
        return ""
    return "The input tensor shape misaligns with the input kernel shape."


@bound
class ParserError:
    def __init__(self, code, text, number=-1, node=None):
        self._code, self._text, self._number = code, text, number
        self._node = node

    def code(self):
        return self._code

    def desc(self):
        return self._text

    def file(self):
        return "ModelImporter.cpp"

    def line(self):
        return 773

    def func(self):
        return "parseNode"

    def node(self):
        return self._number

    # 8.6.0 tells the place of the node only.
    def node_name(self):
        return self._node.name if self._node is not None and NUMBERS >= (9,) else ""

    def node_operator(self):
        return self._node.op_type if self._node is not None and NUMBERS >= (9,) else ""

    def __str__(self):
        where = f"In node {self._number} " if self._number >= 0 else ""
        return f"{where}({self.func()}): {self._code.name}: {self._text}"


@bound
class OnnxParser:
    def __init__(self, network, logger):
        self._network, self._logger = network, need_logger(logger)
        self._errors, self._flags = [], 0

    def set_flag(self, flag):
        self._flags |= 1 << int(flag)

    def get_flag(self, flag):
        return bool(self._flags >> int(flag) & 1)

    @property
    def num_errors(self):
        return len(self._errors)

    def get_error(self, index):
        return self._errors[index]

    def clear_errors(self):
        self._errors.clear()

    def parse_from_file(self, model):
        try:
            # Without external data: onnx takes none from files with several names.
            proto = onnx.load(model, load_external_data=False)
            for tensor in proto.graph.initializer:
                _read_beside(tensor, Path(model).parent)
        except (DecodeError, OSError, ValueError):
            return self._fail(ErrorCode.MODEL_DESERIALIZE_FAILED, f"Failed to parse file: {model}")
        return self._take(proto)

    def parse(self, model, path=None):
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(bytes(model))
            for tensor in proto.graph.initializer:
                _read_beside(tensor, Path(path or ".").parent)
        except (DecodeError, OSError, ValueError):
            text = "Failed to parse the model from memory"
            return self._fail(ErrorCode.MODEL_DESERIALIZE_FAILED, text)
        return self._take(proto)

    def _fail(self, code, text, number=-1, node=None):
        self._errors.append(ParserError(code, text, number, node))
        if node is not None:
            said = f'While parsing node number {number} [{node.op_type} -> "{node.output[0]}"]:'
            self._logger.log(Severity.ERROR, f"ModelImporter.cpp:771: {said}")
        self._logger.log(Severity.ERROR, f"ModelImporter.cpp:773: {self._errors[-1]}")
        return False

    def _check(self, graph):
        constants = {tensor.name: tensor for tensor in graph.initializer}
        for number, node in enumerate(graph.node):
            if node.domain not in ("", "ai.onnx") or node.op_type not in KNOWN:
                self._fail(
                    ErrorCode.UNSUPPORTED_NODE,
                    'Assertion failed: creator && "Plugin not found, are the plugin name, '
                    f'version, and namespace correct?" ({node.op_type})',
                    number,
                    node,
                )
            elif said := quantisation_fault(node, constants) or kernel_fault(node, constants):
                self._fail(ErrorCode.INVALID_NODE, f"Assertion failed: {said}", number, node)

    def _take(self, proto):
        try:
            faults.strike("parse")
        except faults.Failure as failure:
            return self._fail(ErrorCode.INTERNAL_ERROR, str(failure))
        if not proto.graph.node and not proto.graph.output:
            return self._fail(ErrorCode.MODEL_DESERIALIZE_FAILED, "Failed to parse the model")
        self._check(proto.graph)
        if self._errors:
            return False
        try:
            model = read_model(proto)
        except Refused as error:
            return self._fail(ErrorCode.INVALID_GRAPH, str(error))
        for value in (*model.graph.inputs, *model.graph.outputs):
            if data_type(value.dtype) is None:
                text = f"Found unsupported datatype ({value.dtype}) of tensor {value.name}"
                return self._fail(ErrorCode.UNSUPPORTED_GRAPH, text)
        wide = any(t.data_type == onnx.TensorProto.INT64 for t in proto.graph.initializer)
        if wide and NUMBERS < (10,):
            self._logger.log(
                Severity.WARNING,
                "onnx2trt_utils.cpp:374: Your ONNX model has been generated with INT64 weights, "
                "while TensorRT does not natively support INT64. Attempting to cast down to INT32.",
            )
        self._network._fill(model)
        return True
