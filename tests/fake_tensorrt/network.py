"""Networks: the layers and tensors that the parser makes of a model, one layer for each node."""

from typing import Any

import onnx_ir as ir

from tests.fake_tensorrt.enums import (
    DataType,
    LayerType,
    NetworkDefinitionCreationFlag,
    Severity,
    TensorLocation,
    data_type,
    layer_type,
)
from tests.fake_tensorrt.model import values_of
from tests.fake_tensorrt.versions import NUMBERS, bound

FLOATS = tuple(DataType[name] for name in ("FLOAT", "HALF", "BF16") if name in DataType.__members__)

_INTEGERS = (6, 7)
"""INT32 and INT64 in ONNX."""

_SHAPE_SLOTS = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "TopK", "Unsqueeze", "Squeeze", "Pad"), (1,)),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Resize": (3,),
    "Slice": (1, 2, 3, 4),
}


def shape_values(graph):
    """Return the integer tensors whose elements decide about shapes."""
    found: set[Any] = set()
    waiting = [
        node.inputs[slot]
        for node in graph
        for slot in _SHAPE_SLOTS.get(node.op_type, ())
        if slot < len(node.inputs)
    ]
    while waiting:
        value = waiting.pop()
        if value is None or value in found or value.dtype not in _INTEGERS:
            continue
        found.add(value)
        producer = value.producer()
        if producer is not None and producer.op_type not in ("Shape", "Size", "NonZero"):
            waiting += producer.inputs
    return found


def dims(value) -> tuple[int, ...]:
    """Return the shape of a value, -1 for what is not static; empty where even the rank is not."""
    if value.shape is None:
        return ()
    return tuple(size if isinstance(size, int) else -1 for size in value.shape)


@bound
class ITensor:
    allowed_formats = 1
    dynamic_range = None
    broadcast_across_batch = False
    location = TensorLocation.DEVICE

    def __init__(self, network, value):
        self._network = network
        self._value = value
        self._name = value.name
        self._dtype = data_type(value.dtype)

    @property
    def name(self):
        return self._name

    @name.setter
    def name(self, name):
        if not (self.is_network_input or self.is_network_output):
            self._name = name
            return
        raise NotImplementedError("the fake renames no inputs and outputs")

    @property
    def dtype(self):
        return self._dtype

    @property
    def shape(self):
        return dims(self._value)

    @property
    def is_shape_tensor(self):
        return self._value in self._network._shapes

    @property
    def is_execution_tensor(self):
        return not self.is_shape_tensor

    @property
    def is_network_input(self):
        return self._value.is_graph_input()

    @property
    def is_network_output(self):
        return self._name in self._network._outputs


@bound
class ILayer:
    name = ""
    metadata = ""

    def __init__(self, network, name, kind, node=None, constant=None):
        self.name = name
        self._network, self._kind, self._node = network, kind, node
        self._inputs = list(node.inputs) if node is not None else []
        self._outputs = list(node.outputs) if node is not None else [constant]
        if node is not None:
            self.metadata = f"[ONNX Layer: {node.name}]"
        self._precision = None
        self._output_types = {}

    @property
    def type(self):
        return self._kind

    @property
    def num_inputs(self):
        return len(self._inputs)

    @property
    def num_outputs(self):
        return len(self._outputs)

    def get_input(self, index):
        return self._tensor(self._inputs, index)

    def get_output(self, index):
        return self._tensor(self._outputs, index)

    def _tensor(self, values, index):
        if not 0 <= index < len(values) or values[index] is None or not values[index].name:
            return None
        return self._network._tensor(values[index])

    @property
    def precision(self):
        return self._precision or DataType.FLOAT

    @precision.setter
    def precision(self, kind):
        if self._network._strong:
            self._network._error("setPrecision cannot be called for a strongly typed network")
            return
        self._precision = kind

    @property
    def precision_is_set(self):
        return self._precision is not None

    def reset_precision(self):
        self._precision = None

    def get_output_type(self, index):
        return self._output_types.get(index, self.get_output(index).dtype)

    def set_output_type(self, index, dtype):
        if self._network._strong:
            self._network._error("setOutputType cannot be called for a strongly typed network")
        elif self._kind is LayerType.SHAPE:
            self._network._error(
                "3: [shapeLayer.h::setOutputType::33] Error Code 3: API Usage Error (Parameter "
                "check failed, condition: dataType == DataType::kINT32)"
            )
        else:
            self._output_types[index] = dtype

    def output_type_is_set(self, index):
        return index in self._output_types

    def reset_output_type(self, index):
        self._output_types.pop(index, None)

    def _constraint(self):
        """Return whether precision or an output type are FP32 by constraint."""
        return DataType.FLOAT in (self._precision, *self._output_types.values())

    def _fault(self):
        """Return what the builder says of impossible constraints, None where there are none."""
        if self._kind.name == "CAST" and any(
            kind is not self.get_output(i).dtype for i, kind in self._output_types.items()
        ):
            return (
                "2: [castLayer.cpp::validate::33] Error Code 2: Internal Error (Assertion "
                "!mOutputTypes.at(0).hasValue() || mOutputTypes.at(0).value() == params.toType "
                "failed. )"
            )
        for i, kind in self._output_types.items():
            tensor = self.get_output(i)
            if tensor.dtype not in FLOATS and kind in FLOATS:
                return (
                    f"4: [network.cpp::validate::3014] Error Code 4: Internal Error ({self.name}: "
                    f"output {i} of type {tensor.dtype.name} cannot be {kind.name})"
                )
        return None


@bound
class INetworkDefinition:
    name = "fake"
    has_implicit_batch_dimension = False
    error_recorder = None

    def __init__(self, logger, flags):
        self._logger = logger
        self._flags = flags
        strong = NetworkDefinitionCreationFlag.__members__.get("STRONGLY_TYPED")
        self._strong = NUMBERS >= (11,) or bool(strong and flags >> int(strong) & 1)
        self._layers, self._tensors, self._shapes = [], {}, set()
        self._outputs = []
        self._proto = b""
        self._graph: Any = None

    def _error(self, text):
        self._logger.log(Severity.ERROR, text)

    def _fill(self, model):
        """Take a parsed model."""
        graph = model.graph
        self._proto, self._graph = ir.serde.serialize_model(model).SerializeToString(), graph
        self._shapes = shape_values(graph)
        self._outputs = [v.name for v in graph.outputs]
        for value in graph.initializers.values():
            self._layers.append(ILayer(self, value.name, LayerType.CONSTANT, constant=value))
        for node in graph:
            self._layers.append(ILayer(self, node.name, layer_type(node.op_type), node))

    def _tensor(self, value):
        if value not in self._tensors:
            self._tensors[value] = ITensor(self, value)
        return self._tensors[value]

    def _kept(self):
        """Return the nodes that are FP32 by constraint."""
        if self._strong:
            return []
        return [n._node.name for n in self._layers if n._node is not None and n._constraint()]

    def _is_quantised(self):
        return any(layer.type.name in ("QUANTIZE", "DEQUANTIZE") for layer in self._layers)

    @property
    def num_layers(self):
        return len(self._layers)

    @property
    def num_inputs(self):
        return len(self._graph.inputs) if self._graph is not None else 0

    @property
    def num_outputs(self):
        return len(self._outputs)

    def get_layer(self, index):
        return self._layers[index]

    def get_input(self, index):
        return self._tensor(self._graph.inputs[index])

    def get_output(self, index):
        name = self._outputs[index]
        return next(t for t in map(self._tensor, values_of(self._graph)) if t._name == name)

    def mark_output(self, tensor):
        if tensor._name not in self._outputs:
            self._outputs.append(tensor._name)

    def unmark_output(self, tensor):
        self._outputs.remove(tensor._name)

    def get_flag(self, flag):
        return bool(self._flags >> int(flag) & 1)

    def __len__(self):
        return len(self._layers)

    def __getitem__(self, index):
        return self._layers[index]
