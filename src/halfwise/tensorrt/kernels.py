"""Read formats from TensorRT's names of data types and kernels.

These names are undocumented. The grammar here was inferred from names in public logs and engines;
where two readings were possible, it takes the one that fits all names:

* Data types, in engines of 8.x: `Row major linear FP32`, `Channel major FP16 format where channel
  % 8 == 0`; from 10.x on `Half`, `Float`, `BFloat16` (NVIDIA's trt-engine-explorer lists them,
  `trex/activations.py`). `N/A due to dynamic shapes` gives no type.
* XMMA kernels (`sm80_xmma_gemm_i8f32_i8i32_f32_tn_n`): formats of the data read and written, of
  operands and sums, and of the scaling. By its layer, the example reads INT8 and writes FP32;
  `f32f32_tf32f32_f32` is TF32, `f16f16_f16f32_f32` FP16 with FP32 sums. cuBLAS's
  `gemvx_f16f16_f32_f32` reads FP16, and so does `hmma_fprop_f16f16f32`.
* Kernels of cuDNN, cuBLAS and CUTLASS (`ampere_h16816cudnn`, `turing_fp16_s1688cudnn_fp16`,
  `cutlass_80_tensorop_s16816gemm_f16`): a letter for the format of sums (h, s, d, i), the shape of
  a tensor core's step, the operation. With h everything is FP16. With s and a shape, the name gives
  the operands' format, else the layer does; FP32 then means TF32, since tensor cores have no FP32.
  With s and no shape (`scudnn`, `sgemm`) no tensor core is used: FP32. `884` is Volta's, which
  supports only FP16. (CUTLASS documents the scheme in `media/docs/profiler.md`.)
* Kernels that Myelin generates (`__myl_CastMulSum_0x…`) name operations, not formats.
"""

import re
from collections.abc import Sequence

from halfwise.records import Precision

_DATA_TYPES = (
    ("bf16", r"bfloat16|bf16"),
    ("fp16", r"fp16|half|float16"),
    ("fp8", r"fp8|float8|e4m3|e5m2"),
    ("fp4", r"fp4|float4|e2m1"),
    ("fp64", r"fp64|double|float64"),
    ("complex", r"complex"),
    ("tf32", r"tf32"),
    ("fp32", r"fp32|float"),
    ("int8", r"(?<!u)int8"),
)
_OTHER_TYPE = re.compile(r"u?int(?:4|8|16|32|64)|bool")
FLOATS: dict[str, Precision] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp4": "unknown",
    "fp64": "unknown",
    "complex": "unknown",
}
"""Precision of computing on a data type; "unknown" if `Precision` has no word for it."""

_SHORT = r"tf32|bf16|f16|f32|f64|i32|i8|u8|e4m3|e5m2"
_PRECISIONS: dict[str, Precision] = {
    **dict.fromkeys(("f32", "fp32", "float"), "fp32"),
    "tf32": "tf32",
    **dict.fromkeys(("f16", "fp16", "half"), "fp16"),
    "bf16": "bf16",
    **dict.fromkeys(("i8", "u8", "int8"), "int8"),
    **dict.fromkeys(("e4m3", "e5m2", "fp8"), "fp8"),
}
_LONG = r"fp16|bf16|tf32|fp32|int8"
_START, _END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
_RUN = re.compile(rf"{_START}(?:{_SHORT})(?:_?(?:{_SHORT}))+{_END}")
_LETTER = re.compile(
    rf"{_START}(?:(?P<before>{_LONG})_)?(?P<sum>[hsid])(?P<step>\d+(?:x\d+x\d+)?)?"
    rf"(?P<within>tf32|bf16|f16)?(?:gemm|cudnn|conv|fprop)(?:_(?P<after>{_LONG}|{_SHORT}))?"
)
_WORD = re.compile(rf"{_START}(?:{_LONG}|fp8|half){_END}", re.IGNORECASE)
_PRODUCT = re.compile(
    r"conv(?!er)|gemm|gemv|matmul|matrix|fullyconnected|fusion|mha|attention|einsum|rnn|lstm",
    re.IGNORECASE,
)
_GENERATED_PRODUCT = re.compile(r"Fc(?![a-z])")

MOVES = frozenset(
    (
        *("reformat", "noop", "shuffle", "slice", "gather", "constant", "cast", "copy", "reshape"),
        *("concat", "concatenation", "padding", "identity", "signal", "wait", "shape_call"),
        *("shapehosttodevice", "devicetoshapehost", "trainstation", "train_station"),
    )
)
"""Types of layers, in lower case, that only copy or convert."""


def data_type(text: str) -> str:
    """Return the short name of a data type ("fp16", "int64", "bool"); "" if `text` has none."""
    lower = text.lower()
    if "n/a" in lower:
        return ""
    for name, pattern in _DATA_TYPES:
        if re.search(pattern, lower):
            return name
    found = _OTHER_TYPE.search(lower)
    return found[0] if found else ""


def is_product(kind: str, name: str, tactic: str) -> bool:
    """Return whether a layer may multiply matrices, and so may round FP32 data to TF32."""
    words = f"{kind} {name if name.startswith('_') else ''} {tactic}"
    return bool(_PRODUCT.search(words) or _GENERATED_PRODUCT.search(words))


def kernel_precision(tactic: str, operand: str) -> Precision | None:
    """Return the format of a kernel's operands by its name; None if the name does not give it.

    Args:
        tactic: Name of the kernel.
        operand: Data type of the layer's operands; "" if unknown.
    """
    if "tf32" in tactic:
        return "tf32"
    if run := _RUN.search(tactic):
        return _run_precision(run[0])
    if letter := _LETTER.search(tactic):
        named = letter["within"] or letter["after"] or letter["before"] or operand
        return _letter_precision(letter["sum"], letter["step"], named)
    words = {w.lower() for w in _WORD.findall(tactic)}
    return _PRECISIONS[words.pop()] if len(words) == 1 else None


def layer_precision(
    kind: str,
    name: str,
    types: tuple[Sequence[str], Sequence[str], str],
    tactic: str,
    *,
    tf32: bool,
) -> Precision:
    """Return a layer's precision from its type, name, data types and kernel.

    A fused block of 8.x (type "Myelin") is unknown: data types at its border say nothing about its
    inside. A kernel has the precision of its operands, whatever the format of its sums. A layer
    without a product, or with an inconclusive kernel name, has that of its floating-point inputs
    and outputs; "mixed" if they differ, or if a generated kernel casts inside. FP32 data may be
    multiplied in TF32, which no data type shows.

    Args:
        kind: Type of the layer.
        name: Its name.
        types: Data types of inputs, outputs and weights, as `data_type` names them; "" for unknown.
        tactic: Name of its kernel; "" for unknown.
        tf32: Whether the engine may use TF32: then products of FP32 data are unknown.
    """
    inputs, outputs, weights = types
    if kind.lower() in MOVES:
        return "other"
    if kind == "Myelin":
        return "unknown"
    product = is_product(kind, name, tactic)
    operands = {weights} if weights else set(inputs)
    floats = {t for t in operands if t in FLOATS}
    operand = "int8" if "int8" in operands else floats.pop() if len(floats) == 1 else ""
    if (product or operand == "int8") and (found := kernel_precision(tactic, operand)):
        return found
    if product and operand == "int8":
        return "int8"
    if product:
        return _by_types(operands, f"{name} {tactic}", may_be_tf32=tf32)
    found = _by_types({*inputs, *outputs}, f"{name} {tactic}", may_be_tf32=False)
    return kernel_precision(tactic, operand) or found if found == "unknown" else found


def _by_types(types: set[str], names: str, *, may_be_tf32: bool) -> Precision:
    if not types or "" in types:
        return "unknown"
    floats = {FLOATS[t] for t in types if t in FLOATS}
    if not floats:
        return "other"
    if len(floats) > 1:
        return "mixed"
    (found,) = floats
    if found == "fp32" and may_be_tf32:
        return "unknown"
    # Myelin names a generated kernel after its operations. A cast means that a low kernel is wider
    # inside, and an FP32 kernel lower, unless the cast is of integers.
    casts = re.search(r"__myl_\w*Cast", names) and (found != "fp32" or types <= FLOATS.keys())
    return "mixed" if casts else found


def _run_precision(run: str) -> Precision | None:
    groups = [re.findall(_SHORT, part) for part in run.split("_")]
    stored = groups[0][0]
    pairs = len(groups) > 1 and len(groups[0]) == len(groups[1]) == 2
    multiplied = groups[1][0] if pairs else stored
    # Data stored in a low format are already rounded, even if multiplied in a wider one.
    return _PRECISIONS.get(multiplied if stored == "f32" else stored)


def _letter_precision(sums: str, step: str | None, operand: str) -> Precision | None:
    if sums in "id":
        return "int8" if sums == "i" else None
    if sums == "h" or step == "884":
        return "fp16"
    named = _PRECISIONS.get(operand)
    if step is None:
        return "fp32" if named is None or named == "tf32" else named
    return "tf32" if named == "fp32" else named
