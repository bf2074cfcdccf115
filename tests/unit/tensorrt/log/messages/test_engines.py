import pytest

from tests.unit.tensorrt.log.messages.wordings import kind_of

LINES = [
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


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_wordings(kind, line):
    assert kind_of(line)[0] == kind


def test_versions_and_capabilities_are_told():
    assert kind_of(LINES[3][1])[1] == (
        "The engine was built by TensorRT 8.2.1; this is TensorRT 8.2.3."
    )
    assert kind_of(LINES[5][1])[1] == (
        "The engine was built for compute capability 7.5; this GPU has 8.6."
    )
