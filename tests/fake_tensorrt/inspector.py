"""The engine inspector: JSON as 8.x writes it, raw control characters included, or as 10 does."""

import json
from typing import Any

from tests.fake_tensorrt.enums import LayerInformationFormat, data_type
from tests.fake_tensorrt.network import FLOATS, dims
from tests.fake_tensorrt.rounding import INT8
from tests.fake_tensorrt.versions import NUMBERS, bound

_WORDS = {"FLOAT": "Float", "HALF": "Half", "BF16": "BFloat16", "INT32": "Int32", "INT64": "Int64"}
_WORDS |= {"BOOL": "Bool", "INT8": "Int8", "UINT8": "UInt8"}
_FORMATS_8 = {"Half": "Row major linear FP16 format", "Float": "Row major linear FP32"}
_FORMATS_8 |= {"Int32": "Row major linear INT32", "Bool": "Row major linear BOOL"}
_TACTICS = {
    "Half": "sm80_xmma_f16f16_f16f16_f16_tn_n_tilesize64x64x64",
    "BFloat16": "sm80_xmma_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64",
    "TF32": "sm80_xmma_f32f32_tf32f32_f32_tn_n_tilesize64x64x32",
    "Float": "sm80_xmma_f32f32_f32f32_f32_tn_n_tilesize64x64x8",
    "Int8": "sm80_xmma_fprop_implicit_gemm_indexed_i8f32_i8i32_f32_nhwckrsc_nhwc_tilesize64x64x64",
}
_PRODUCTS = {"Conv": "CaskConvolution", "ConvTranspose": "CaskDeconvolution"}
_PRODUCTS |= {"MatMul": "MatrixMultiply", "Gemm": "MatrixMultiply"}


def _integers(value):
    """Return what is dequantised to a value: integers, or the constant that they are made of."""
    while value.const_value is None and value.producer().op_type != "QuantizeLinear":
        value = value.producer().inputs[0]
    source = value if value.const_value is not None else value.producer().inputs[0]
    return source if source.const_value is not None else value


@bound
class EngineInspector:
    execution_context: Any = None
    error_recorder = None

    def __init__(self, program):
        self._program = program

    def get_engine_information(self, format):
        if format is not LayerInformationFormat.JSON:
            return "\n".join(name for name, _ in self._program.layers)
        layers = [self._layer(name, nodes) for name, nodes in self._program.layers]
        io = [*self._program.graph.inputs, *self._program.graph.outputs]
        found = {"Layers": layers}
        found["I/O Tensors" if NUMBERS >= (11,) else "Bindings"] = [v.name for v in io]
        return self._text(found)

    def get_layer_information(self, layer_index, format):
        name, nodes = self._program.layers[layer_index]
        return self._text(self._layer(name, nodes))

    def _text(self, found):
        text = json.dumps(found, indent=1)
        # What JSON forbids in strings, 8.x writes as it is.
        return text if NUMBERS >= (10,) else text.replace("\\u001e", "\x1e")

    def _layer(self, name, nodes):
        if not self._program.plan.detailed:
            return name
        precision = self._program.precision
        made = dict.fromkeys(v for n in nodes for v in n.outputs)
        read = {
            v: precision.read(n, i)
            for n in nodes
            for i, v in enumerate(n.inputs)
            if v is not None and v not in made
        }
        given = {v: precision.stored(v) for v in made if self._leaves(v, nodes)}
        fused = len(nodes) > 1
        kind = self._kind(given.values())
        if nodes[0].name in precision.int8_nodes:
            kind, read = "Int8", dict.fromkeys(map(_integers, nodes[0].inputs[:2]), INT8)
        is_product = not fused and nodes[0].op_type in _PRODUCTS
        layer = {
            "Name": name,
            "LayerType": self._layer_type(nodes, fused),
            "Inputs": [self._tensor(v, k) for v, k in read.items() if v.const_value is None],
            "Outputs": [self._tensor(v, k) for v, k in given.items()],
        }
        if is_product:
            weights = [v for v in read if v.const_value is not None]
            if weights and kind:
                layer["Weights"] = {"Type": kind, "Count": int(weights[0].const_value.size)}
            product = "TF32" if self._program.plan.tf32 and kind == "Float" else kind
            layer["TacticName"] = _TACTICS.get(product, "")
        else:
            layer["TacticName"] = f"__myl_{nodes[0].op_type}_0x{abs(len(name)):016x}"
        if NUMBERS >= (10,):
            layer["StreamId"] = 0
        layer["Metadata"] = self._metadata(nodes, fused)
        return layer

    def _layer_type(self, nodes, fused):
        if fused:
            return "kgen" if NUMBERS >= (10,) else "Myelin"
        return _PRODUCTS.get(nodes[0].op_type, "kgen" if NUMBERS >= (10,) else "PointWiseV2")

    def _leaves(self, value, inside):
        uses = list(value.uses())
        return bool(value.name) and (
            value.is_graph_output() or any(u.node not in inside for u in uses) or not uses
        )

    def _metadata(self, nodes, fused):
        names = [f"[ONNX Layer: {n.name}]" for n in nodes]
        last = nodes[-1]
        # Casts that have vanished leave their names.
        names += [
            f"[ONNX Layer: {u.node.name}]"
            for v in last.outputs
            for u in v.uses()
            if u.node.op_type == "Cast" and u.node not in nodes
        ]
        return ("\x1f" if fused and NUMBERS >= (10,) else "\x1e").join(names)

    def _kind(self, types):
        kinds = map(data_type, types)
        return next((_WORDS[kind.name] for kind in kinds if kind in FLOATS), "")

    def _shape(self, value):
        """Return the shape, with symbols as the context has bound them in the inputs."""
        context = self.execution_context
        bound: dict[str, int] = {}
        for entry in self._program.graph.inputs if context is not None else ():
            sizes = context.get_tensor_shape(entry.name)
            bound |= {str(d): n for d, n in zip(entry.shape, sizes, strict=True)}
        known = [bound.get(str(d), -1) for d in value.shape or ()]
        return [d if d >= 0 else k for d, k in zip(dims(value), known, strict=True)]

    def _tensor(self, value, kind):
        kind = data_type(kind)
        word = _WORDS[kind.name] if kind is not None else "N/A"
        shape = self._shape(value)
        unknown = -1 in dims(value) and self.execution_context is None
        entry = {"Name": value.name, "Location": "Device", "Dimensions": shape}
        if NUMBERS >= (11,):
            return entry | {"Format": "Linear", "Datatype": word}
        if unknown:
            word = "N/A due to dynamic shapes"
        elif NUMBERS < (10,):
            word = _FORMATS_8.get(word, f"Row major linear {word}")
        return entry | {"Format/Datatype": word}
