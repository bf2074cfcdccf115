import pytest

from tests.unit.tensorrt.log.messages.wordings import kind_of

LINES = [
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


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_wordings(kind, line):
    assert kind_of(line)[0] == kind
