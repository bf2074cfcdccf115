"""Enumerations, with the members and the numbers of the version that is played."""

import numpy as np

from tests.fake_tensorrt.versions import enumeration

DataType = enumeration("DataType")
BuilderFlag = enumeration("BuilderFlag")
NetworkDefinitionCreationFlag = enumeration("NetworkDefinitionCreationFlag")
OnnxParserFlag = enumeration("OnnxParserFlag")
ProfilingVerbosity = enumeration("ProfilingVerbosity")
MemoryPoolType = enumeration("MemoryPoolType")
TacticSource = enumeration("TacticSource")
TensorIOMode = enumeration("TensorIOMode")
TensorLocation = enumeration("TensorLocation")
TensorFormat = enumeration("TensorFormat")
LayerInformationFormat = enumeration("LayerInformationFormat")
ErrorCode = enumeration("ErrorCode")
LayerType = enumeration("LayerType")
Severity = enumeration("ILogger.Severity")

_KINDS = {"FLOAT": "f4", "HALF": "f2", "INT8": "i1", "INT32": "i4", "INT64": "i8", "UINT8": "u1"}
_KINDS["BOOL"] = "?"
NUMPY = {kind: np.dtype(_KINDS[kind.name]) for kind in DataType if kind.name in _KINDS}

_ONNX = {1: "FLOAT", 2: "UINT8", 3: "INT8", 6: "INT32", 9: "BOOL", 10: "HALF", 16: "BF16"}
_ONNX[7] = "INT64" if "INT64" in DataType.__members__ else "INT32"


def data_type(element):
    """Return the `DataType` that TensorRT gives an ONNX element type, None where it has none."""
    return None if element is None else DataType.__members__.get(_ONNX.get(int(element), ""))


_LAYERS = {
    "ACTIVATION": "Relu Sigmoid Tanh LeakyRelu Elu Selu Softplus Softsign Clip HardSigmoid "
    "ThresholdedRelu",
    "CAST": "Cast",
    "CONCATENATION": "Concat",
    "CONDITION": "If",
    "CONVOLUTION": "Conv",
    "DECONVOLUTION": "ConvTranspose",
    "DEQUANTIZE": "DequantizeLinear",
    "EINSUM": "Einsum",
    "FILL": "ConstantOfShape Range RandomNormal RandomUniform",
    "GATHER": "Gather GatherElements GatherND",
    "IDENTITY": "Identity Dropout",
    "LOOP_OUTPUT": "Loop Scan",
    "LRN": "LRN",
    "MATRIX_MULTIPLY": "MatMul Gemm",
    "NMS": "NonMaxSuppression",
    "NON_ZERO": "NonZero",
    "NORMALIZATION": "LayerNormalization GroupNormalization InstanceNormalization",
    "ONE_HOT": "OneHot",
    "PARAMETRIC_RELU": "PRelu",
    "POOLING": "MaxPool AveragePool GlobalAveragePool GlobalMaxPool",
    "QUANTIZE": "QuantizeLinear",
    "REDUCE": "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 "
    "ReduceSumSquare ReduceLogSum ReduceLogSumExp",
    "RESIZE": "Resize Upsample",
    "SCALE": "BatchNormalization",
    "SCATTER": "ScatterElements ScatterND Scatter",
    "SELECT": "Where",
    "SHAPE": "Shape Size",
    "SHUFFLE": "Reshape Transpose Flatten Squeeze Unsqueeze DepthToSpace SpaceToDepth",
    "SLICE": "Slice Split Pad Expand Tile",
    "SOFTMAX": "Softmax LogSoftmax",
    "TOPK": "TopK ArgMax ArgMin",
    "UNARY": "Abs Neg Exp Log Sqrt Reciprocal Ceil Floor Erf Sin Cos Tan Asin Acos Atan Sinh Cosh "
    "Not Round Sign IsInf IsNaN",
}
_OF_OPERATOR = {op: LayerType[kind] for kind, ops in _LAYERS.items() for op in ops.split()}


def layer_type(op: str):
    """Return what kind of layer an operator becomes."""
    return _OF_OPERATOR.get(op, LayerType["ELEMENTWISE"])
