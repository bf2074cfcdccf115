"""Schemas of the operators that ONNX Runtime brings along besides ONNX's own."""

import functools
from dataclasses import dataclass

from onnxruntime.capi import onnxruntime_pybind11_state as ort_schemas


@dataclass(frozen=True)
class Signature:
    """Types that an operator takes and gives.

    Attributes:
        inputs: Per input slot the ONNX types, such as `tensor(float16)`; a variadic slot is the
            last.
        outputs: The same of the outputs.
    """

    inputs: tuple[frozenset[str], ...]
    outputs: tuple[frozenset[str], ...]


@functools.cache
def signature(domain: str, op_type: str, version: int) -> Signature | None:
    """Return an operator's signature at a version of its domain; None if ONNX Runtime has none.

    Operators of registered libraries have none here: only their session knows them.
    """
    known = [
        schema
        for schema in ort_schemas.get_all_operator_schema()
        if (schema.domain, schema.name) == (domain, op_type) and schema.since_version <= version
    ]
    if not known:
        return None
    schema = max(known, key=lambda schema: schema.since_version)
    allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    inputs, outputs = (
        tuple(allowed.get(p.typeStr, frozenset((p.typeStr,))) for p in parameters)
        for parameters in (schema.inputs, schema.outputs)
    )
    return Signature(inputs, outputs)
