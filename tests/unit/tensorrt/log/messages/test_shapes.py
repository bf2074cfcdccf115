import pytest

from tests.unit.tensorrt.log.messages.wordings import kind_of

LINES = [
    (
        "profile-missing",
        "[TensorRT] ERROR: Network has dynamic or shape inputs, but no optimization profile has "
        "been defined.",
    ),
    (
        "profile-input-missing",
        "[TensorRT] ERROR: input_image: dynamic input is missing dimensions in profile 0.",
    ),
    ("profile-order", "[E] 4: Specified optimization profiles must satisfy MIN<=OPT<=MAX."),
    (
        "profile-static-axis",
        "[E] input_1: for dimension number 1 in profile 0 does not match network definition (got "
        "min=100, opt=1024, max=4096), expected min=opt=max=1024)",
    ),
    ("profile-rank", "[E] input_1: number of dimensions is 4 but profile 0 has 3"),
    (
        "shape-outside",
        "[TRT] [E] 3: [executionContext.cpp::setBindingDimensions::945] Error Code 3: API Usage "
        "Error (Parameter check failed at: runtime/api/executionContext.cpp::setBindingDimensions::"
        "945, condition: profileMinDims.d[i] <= dimensions.d[i]. Supplied binding dimension "
        "[1,3,576,768] for bindings[0] exceed min ~ max range at index 2, maximum dimension",
    ),
    (
        "shape-outside",
        "[TRT] [E] 3: [executionContext.cpp::setInputShape::2288] Error Code 3: API Usage Error "
        "(Parameter check failed, condition: satisfyProfile Runtime dimension does not satisfy any "
        "optimization profile.)",
    ),
    (
        "profile-inconsistent",
        "[E] [TRT] 4: [memoryComputation.cpp::computeEngineAuxMemorySizes::203] Error Code 4: "
        "Internal Error (Profile kOPT values are not self-consistent. Assertion failed.)",
    ),
    ("shape-static", "[E] Static dimension mismatch while setting input shape."),
    (
        "shape-default",
        "[W] Dynamic dimensions required for input: x, but no shapes were provided. Automatically "
        "overriding shape to: 1x3x1x1",
    ),
    (
        "shape-default",
        "[W] Shape missing for input with dynamic shape: imagesAutomatically setting shape to: "
        "1x1x36x450",
    ),
    ("shape-broadcast", "[W] maxShapes is being broadcasted to optShapes for tensor timesteps"),
    ("shape-unset", "[E] all input dimensions have not been specified"),
    ("shape-output-type", "[W] [TRT] Output type must be INT32 for shape outputs"),
]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_wordings(kind, line):
    assert kind_of(line)[0] == kind


def test_names_and_shapes_are_told():
    told = dict(reversed([(kind, kind_of(line)[1]) for kind, line in LINES]))
    assert "for the dynamic input input_image" in told["profile-input-missing"]
    assert "a shape [1,3,576,768] outside" in told["shape-outside"]
    assert told["shape-default"].startswith("No shape was given for x; trtexec took 1x3x1x1,")
