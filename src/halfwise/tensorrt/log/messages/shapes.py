"""Messages about optimization profiles and dynamic shapes."""

from halfwise.tensorrt.log.messages.message import GUIDE, ISSUES, Message

_DYNAMIC = f"{GUIDE}_static/python-api/infer/Core/OptimizationProfile.html"
_SHAPES = "Give --minShapes, --optShapes and --maxShapes for every dynamic input."

SHAPES = (
    Message(
        "profile-missing",
        "error",
        r"has dynamic or shape inputs, but no optimization profile has been defined"
        r"|need profile|Called without an optimization profile",
        "The model has dynamic axes, and no profile says which sizes they take.",
        _SHAPES,
        f"{ISSUES}1116",
    ),
    Message(
        "profile-input-missing",
        "error",
        r"(?<!\S)(?P<tensor>\S+): dynamic input is missing dimensions in profile (?P<number>\d+)",
        "Profile {number} has no shapes for the dynamic input {tensor}.",
        _SHAPES,
        f"{ISSUES}532",
    ),
    Message(
        "profile-order",
        "error",
        r"MIN ?<= ?OPT ?<= ?MAX|kMIN ?<= ?kOPT ?<= ?kMAX",
        "In a profile, a smallest size is above the optimal one, or that above the largest.",
        "Order the sizes of every axis: min ≤ opt ≤ max.",
        "https://github.com/NVIDIA/Stable-Diffusion-WebUI-TensorRT/pull/57",
    ),
    Message(
        "profile-static-axis",
        "error",
        r"(?<!\S)(?P<tensor>\S+): for dimension number (?P<axis>\d+) in profile (?P<number>\d+) "
        r"does not match network definition",
        "Profile {number} gives axis {axis} of {tensor} another size than the model, where it is "
        "fixed.",
        "Give the model's size there, or export with this axis dynamic.",
        f"{ISSUES}939",
    ),
    Message(
        "profile-rank",
        "error",
        r"(?<!\S)(?P<tensor>\S+): number of dimensions is (?P<rank>\d+) but profile "
        r"(?P<number>\d+) has (?P<given>\d+)",
        "{tensor} has {rank} axes, and profile {number} gives sizes for {given}.",
        "Give a size for every axis, the batch included.",
        f"{ISSUES}939",
    ),
    Message(
        "shape-outside",
        "error",
        r"Supplied binding dimension (?P<shape>\[[^\]]*\]) for (?P<binding>\S+) exceed min ~ max"
        r"|does not satisfy any optimization profile",
        "An input has a shape {shape} outside every profile of the engine.",
        "Run it with shapes within the profile, or build with a profile that holds them.",
        f"{ISSUES}4011",
    ),
    Message(
        "profile-inconsistent",
        "error",
        r"values? for profile (?P<number>\d+) violate shape constraints"
        r"|Profile k\w+ values are not self-consistent"
        r"|M(?:in|ax) value of this profile is not valid",
        "The shapes of a profile do not fit each other in the model.",
        "Inputs that share a dynamic axis need the same size for it; take the shapes of real "
        "samples.",
        f"{ISSUES}1947",
    ),
    Message(
        "shape-static",
        "error",
        r"Static dimension mismatch while setting input shape",
        "An input has another size than the engine on an axis that is fixed.",
        "Give the engine's size, or export with this axis dynamic and build again.",
        _DYNAMIC,
    ),
    Message(
        "shape-default",
        "warning",
        r"Dynamic dimensions required for input: (?P<tensor>.+?), but no shapes were provided\. "
        r"Automatically overriding shape to: (?P<shape>\S+)"
        r"|Shape missing for input with dynamic shape: (?P<other>\S+?) ?Automatically setting "
        r"shape to: (?P<set>\S+)",
        "No shape was given for {tensor}{other}; trtexec took {shape}{set}, and the engine runs at "
        "no other.",
        "Check the name of the input, and give --shapes, or --minShapes, --optShapes and "
        "--maxShapes.",
        f"{ISSUES}2208",
    ),
    Message(
        "shape-broadcast",
        "info",
        r"\b(?P<given>\w+Shapes) is being broadcasted to (?P<set>\w+Shapes) for tensor "
        r"(?P<tensor>.+)",
        "{set} of {tensor} are taken from {given}.",
        "",
        f"{ISSUES}3229",
    ),
    Message(
        "shape-unset",
        "error",
        r"all input dimensions (?:have not been|must be) specified|[Nn]ot all (?:input )?(?:shapes|"
        r"dimensions|bindings)[^.]*(?:specified|set)|Input shape.*not (?:been )?set",
        "The engine was asked to run before all dynamic inputs had a shape.",
        "Set the shape of every dynamic input first.",
        _DYNAMIC,
    ),
    Message(
        "shape-output-type",
        "info",
        r"Output type must be INT32 for shape outputs",
        "A shape that the model gives out is a 32-bit integer.",
        "",
        f"{ISSUES}1516",
    ),
)
