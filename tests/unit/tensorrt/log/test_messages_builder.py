import pytest

from tests.unit.tensorrt.log.wordings import kind_of

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


LINES_building = [
    (
        "no-kernel",
        "[06/07/2022-19:05:53] [E] Error[10]: [optimizer.cpp::computeCosts::2011] Error Code 10: "
        "Internal Error (Could not find any implementation for node {ForeignNode[onnx::Gather_72..."
        "ScatterND_170]}.)",
    ),
    (
        "no-format",
        "IBuilder::buildSerializedNetwork: Error Code 9: Internal Error (node_of_onnx::Shape_2609: "
        "could not find any supported formats consistent with input/output data types)",
    ),
    (
        "myelin-shapes",
        "[TRT] [W] Myelin graph with multiple dynamic values may have poor performance if they "
        "differ. Dynamic values are: ",
    ),
    ("myelin-shapes", "[TRT] [W]  (# 1 (SHAPE input_ids))"),
    (
        "myelin",
        "[E] 1: [graphContext.h::MyelinGraphContext::36] Error Code 1: Myelin (No Myelin Error "
        "exists)",
    ),
    (
        "myelin-tactic",
        "[TRT] [W] Skipping tactic 0x0000000000000000 due to Myelin error: Autotuner: no tactics "
        "to implement operation",
    ),
    (
        "myelin-tactic",
        "[E] Error[9]: Error Code: 9: Skipping tactic 0x0000000000000000 due to exception "
        "[myelin_graph.h:attachExceptionMsgToGraph:960] MyelinCheckException: nvrtc_compile.cpp",
    ),
    (
        "tactic-cache",
        "[W] [TRT] Cache result detected as invalid for node: /model.9/m_2/MaxPool, LayerImpl: "
        "CaskPooling, tactic: 0x457fb0a334d63ae2",
    ),
    (
        "assertion",
        "[E] Error[1]: Unexpected exception KTM assertion failure: /_src/a.cpp:65",
    ),
    ("cask", "[E] Error Code 1: Cask (Cask convolution isConsistent check failed)"),
    (
        "cask",
        "[TensorRT] 2: [caskBuilderUtils.cpp::getCaskHandle::408] Error Code 2: Internal Error "
        "(Assertion !isGroupConv failed.)",
    ),
    (
        "tactic-failed",
        "[TRT] [E] 9: Skipping tactic 0x0000000000000000 due to exception Unexpected type in "
        "resetWeightsTypeIfFP",
    ),
    ("not-built", "[06/07/2022-19:05:53] [E] Engine could not be created from network"),
    ("not-built", "&&&& FAILED TensorRT.trtexec [TensorRT v8003] # trtexec --onnx=a.onnx"),
    (
        "not-built",
        "[E] Error[2]: [builder.cpp::buildSerializedNetwork::751] Error Code 2: Internal Error "
        "(Assertion engine != nullptr failed. )",
    ),
    ("not-valid", "[TensorRT] ERROR: Layer Cast_35 failed validation"),
    (
        "assertion",
        "[TRT] [E] 2: [helpers.h::numericCast::38] Error Code 2: Internal Error (Assertion src <= "
        "val failed. )",
    ),
]


@pytest.mark.parametrize(("kind", "line"), LINES_building)
def test_wordings_building(kind, line):
    assert kind_of(line)[0] == kind


LINES_engines = [
    (
        "engine-damaged",
        "ERROR: The engine plan file is not compatible with this version of TensorRT, expecting "
        "library version 5.1.5 got 0.0.0, please rebuild.",
    ),
    (
        "engine-damaged",
        "1: [stdArchiveReader.cpp::StdArchiveReader::54] Error Code 1: Serialization "
        "(Serialization assertion sizeRead == static_cast<uint64_t>(mEnd - mCurrent) "
        "failed.Size specified in header does not match archive size)",
    ),
    (
        "file-damaged",
        "ERROR: 1: [runtime.cpp::parsePlan::314] Error Code 1: Serialization "
        "(Serialization assertion plan->header.magicTag ==rt::kPLAN_MAGIC_TAG failed.)",
    ),
    (
        "engine-version",
        "[05/02/2022-15:17:45] [TRT] [E] 6: The engine plan file is not compatible with this "
        "version of TensorRT, expecting library version 8.2.3 got 8.2.1, please rebuild.",
    ),
    (
        "engine-version",
        "[E] IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion "
        "stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current "
        "Version: 237, Serialized Engine Version: 239)",
    ),
    (
        "engine-gpu",
        "The engine plan file is generated on an incompatible device, expecting compute 8.6 got "
        "compute 7.5, please rebuild.",
    ),
    (
        "engine-other-gpu",
        "[TRT] [W] Using an engine plan file across different models of devices is not recommended "
        "and is likely to affect performance or even cause errors.",
    ),
    (
        "file-damaged",
        "coreReadArchive.cpp (31) - Serialization Error in verifyHeader: 0 (Magic tag does not "
        "match)",
    ),
    ("timing-cache", "[2023-12-25 12:50:09][Error][TRT] 4: The timing cache will not be used!"),
    ("timing-cache", "WARN TRT: Detected invalid timing cache, setup a local cache instead"),
    (
        "timing-cache",
        "error: 1: [myelinCache.h::deserializeFromBuffer::52] Error Code 1: Myelin (Myelin error "
        "from unknown graph)",
    ),
    (
        "timing-cache-kept",
        "remark: TensorRT did not take the timing cache t.cache: it is damaged. It is t.cache.old "
        "now, and a new one was written.",
    ),
    (
        "timing-cache-local",
        "[I] [TRT] Local timing cache in use. Profiling results in this builder pass will not be "
        "stored.",
    ),
    (
        "engine-refused",
        "[TRT] [E] 4: [runtime.cpp::deserializeCudaEngine::50] Error Code 4: Internal Error "
        "(Engine deserialization failed.)",
    ),
    ("engine-refused", "[!] Could not deserialize engine. See log for details."),
]


@pytest.mark.parametrize(("kind", "line"), LINES_engines)
def test_wordings_engines(kind, line):
    assert kind_of(line)[0] == kind


def test_versions_and_capabilities_are_told():
    assert kind_of(LINES_engines[3][1])[1] == (
        "The engine was built by TensorRT 8.2.1; this is TensorRT 8.2.3."
    )
    assert kind_of(LINES_engines[5][1])[1] == (
        "The engine was built for compute capability 7.5; this GPU has 8.6."
    )
