import pytest

from tests.unit.tensorrt.log.messages.wordings import kind_of

LINES = [
    ("plugin-missing", "[E] [TRT] 3: getPluginCreator could not find plugin: MyOp version: 1"),
    ("plugin-missing", "getPluginCreator() could not find Plugin MyOp version 1"),
    (
        "operator-unsupported",
        "[E] [TRT] 3: getPluginCreator could not find plugin: LayerNormalization version: 1",
    ),
    (
        "operator-plugin",
        "[TRT] [I] No importer registered for op: TRTBatchedNMS. Attempting to import as plugin.",
    ),
    (
        "plugin-found",
        "[TRT] [I] Searching for plugin: GridSampler, plugin_version: 1, plugin_namespace: ",
    ),
    ("plugin-found", "[TRT] [I] Successfully created plugin: TRTInstanceNormalization"),
    (
        "branch-shapes",
        "[TRT] [E] If_534_OutputLayer: IIfConditionalOutputLayer inputs must have the same shape.",
    ),
    (
        "plugin-unregistered",
        "[E] 1: Cannot deserialize plugin since corresponding IPluginCreator not found in Plugin "
        "Registry",
    ),
    (
        "plugin-twice",
        "[E] Error[4]: IRuntime::deserializeCudaEngine: Error Code 4: API Usage Error (Cannot "
        "register the library as plugin creator of EfficientRotatedNMS_TRT exists already.)",
    ),
    (
        "shape-tensor-rank",
        "[E] Error[4]: [shuffleNode.cpp::symbolicExecute::387] Error Code 4: Internal Error "
        "(Reshape_331: IShuffleLayer applied to shape tensor must have 0 or 1 reshape dimensions)",
    ),
    (
        "constant-input",
        "[E] This version of TensorRT only supports input K as an initializer.",
    ),
    (
        "broadcast",
        "[TRT] [E] [graphShapeAnalyzer.cpp::analyzeShapes::1285] Error Code 4: Miscellaneous "
        "(IPointWiseLayer conv_1_relu: broadcast dimensions must be conformable)",
    ),
    (
        "large-model",
        "[libprotobuf WARNING google/protobuf/io/coded_stream.cc:604] Reading dangerously large "
        "protocol message.  If the message turns out to be larger than 2147483647 bytes",
    ),
    ("file-missing", "Could not open file ../weights/hrnet.onnx"),
    (
        "newer-onnx",
        "WARNING: ONNX model has a newer ir_version (0.0.6) than this parser was built against "
        "(0.0.3).",
    ),
    (
        "weights-unreadable",
        "[8] Assertion failed: convertOnnxWeights(initializer, &weights, ctx)",
    ),
    ("not-parsed", "[02/03/2022-06:14:51] [E] Failed to parse onnx file"),
    (
        "not-parsed",
        "polygraphy.exception.exception.PolygraphyException: Could not parse ONNX correctly",
    ),
    (
        "not-parsed",
        "[TRT] [E] 4: [network.cpp::validate::2633] Error Code 4: Internal Error (Network must "
        "have at least one output)",
    ),
]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_wordings(kind, line):
    assert kind_of(line)[0] == kind
