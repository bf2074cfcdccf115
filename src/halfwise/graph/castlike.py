"""Write CastLike nodes as the Casts that they are.

CastLike copies only where its two types are equal: integers that become FP16 are rounded, and
overflow. As a Cast it is one operator less to treat, and reads no value that it does not need.
"""

from collections.abc import Iterable

import onnx_ir as ir


def name_cast_types(graphs: Iterable[ir.Graph]) -> None:
    """Replace each CastLike by a Cast to the type of its second input, in place.

    Names, outputs and attributes (`saturate`, `round_mode`) stay; Cast has the same ones in every
    version of ONNX that has CastLike. One whose second input has no known type stays as it is.
    """
    for node in [n for graph in graphs for n in graph]:
        if node.op_type != "CastLike" or node.domain not in ("", "ai.onnx"):
            continue
        like = node.inputs[1]
        if like is None or like.dtype is None:
            continue
        node.op_type = "Cast"
        node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))
        node.resize_inputs(1)
