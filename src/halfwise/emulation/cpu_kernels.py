"""Operators that ONNX Runtime lacks on the CPU, or reads wrongly there, written out in ONNX's."""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, parser

from halfwise.graph.model import ONNX_DOMAINS
from halfwise.graph.protobufs import graphs_in

_DOMAIN = "com.microsoft"
_POSITIONS = "RelativePositionBias"
WRITTEN_OUT = frozenset(((_DOMAIN, _POSITIONS),))
"""Operators, with their domains, that are written out for the CPU."""

_FUNCTION = """
<domain: "com.microsoft", opset_import: ["" : 12]>
RelativePositionBias <max_distance, is_bidirectional> (table, query_length, key_length) => (bias)
{
  zero = Constant <value_int: int = 0> ()
  one = Constant <value_int: int = 1> ()
  two = Constant <value_int: int = 2> ()
  upright = Constant <value_ints: ints = [-1, 1]> ()
  single = Constant <value_ints: ints = [1]> ()
  reversed = Constant <value_ints: ints = [1, 0]> ()
  both = Constant <value_int: int = @is_bidirectional> ()
  farthest = Constant <value_int: int = @max_distance> ()
  query_end = Squeeze (query_length)
  queries = Cast <to = 7> (query_end)
  key_end = Squeeze (key_length)
  keys = Cast <to = 7> (key_end)
  query_places = Range (zero, queries, one)
  column = Reshape (query_places, upright)
  row = Range (zero, keys, one)
  apart = Sub (row, column)
  sizes = Shape (table)
  buckets = Gather (sizes, zero)
  sides = Add (both, one)
  half = Div (buckets, sides)
  is_later = Greater (apart, zero)
  later = Cast <to = 7> (is_later)
  skipped = Mul (half, both)
  offset = Mul (later, skipped)
  magnitude = Abs (apart)
  earlier = Min (apart, zero)
  back = Neg (earlier)
  is_both = Cast <to = 9> (both)
  distance = Where (is_both, magnitude, back)
  exact = Div (half, two)
  least = Max (distance, one)
  far = Cast <to = 1> (least)
  edge = Cast <to = 1> (exact)
  end = Cast <to = 1> (farthest)
  times = Div (far, edge)
  span = Div (end, edge)
  log_times = Log (times)
  log_span = Log (span)
  share = Div (log_times, log_span)
  rest = Sub (half, exact)
  rest_f = Cast <to = 1> (rest)
  steps = Mul (share, rest_f)
  whole = Cast <to = 7> (steps)
  large = Add (exact, whole)
  last = Sub (half, one)
  capped = Min (large, last)
  is_near = Less (distance, exact)
  within = Where (is_near, distance, capped)
  bucket = Add (offset, within)
  turned = Gather (sizes, reversed)
  shape = Concat <axis = 0> (single, turned)
  by_head = Reshape (table, shape)
  bias = Gather <axis = 2> (by_head, bucket)
}
"""
"""T5's buckets (Raffel et al. 2020, arXiv 1910.10683, 2.1): one for each of the nearest places, as
many for ranges that grow by a factor. The table has its columns one after the other (ONNX
Runtime's docs/ContribOperators.md). T5 as it is before the optimiser gives the same to 3e-7."""

_DEFAULTS = {"max_distance": 128, "is_bidirectional": 0}


def with_cpu_kernels(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that ONNX Runtime runs on the CPU, as far as forms are known.

    A RelativePositionBias becomes nodes of ONNX, and an Attention without a bias gets zeros: the
    CPU's kernel reads it without asking (onnxruntime 1.31). Changed in place, or another model.
    """
    graphs = list(graphs_in(proto.graph))
    ops = {n.op_type for graph in graphs for n in graph.node if n.domain == _DOMAIN}
    for graph in graphs if "Attention" in ops else ():
        nodes = [one for node in graph.node for one in _with_bias(node)]
        if len(nodes) > len(graph.node):
            del graph.node[:]
            graph.node.extend(nodes)
    if _POSITIONS not in ops:
        return proto
    for node in (n for graph in graphs for n in graph.node if n.op_type == _POSITIONS):
        given = {attribute.name for attribute in node.attribute}
        omitted = (pair for pair in _DEFAULTS.items() if pair[0] not in given)
        node.attribute.extend(helper.make_attribute(*pair) for pair in omitted)
    function = parser.parse_function(_FUNCTION)
    versions = (o.version for o in proto.opset_import if o.domain in ONNX_DOMAINS)
    function.opset_import[0].version = next(versions)
    proto.functions.append(function)
    return inliner.inline_selected_functions(proto, [(_DOMAIN, _POSITIONS)])


def _with_bias(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield a node; before an Attention that reads no bias, zeros of its weights' type for it."""
    if node.domain == _DOMAIN and node.op_type == "Attention" and not any(node.input[2:3]):
        bias = f"halfwise::{node.output[0]}::bias"
        first, row = f"{bias}::first", f"{bias}::row"
        zero = numpy_helper.from_array(np.array(0))
        yield helper.make_node("Constant", [], [first], first, value=zero)
        yield helper.make_node("Gather", [node.input[1], first], [row], row)
        yield helper.make_node("Sub", [row, row], [bias], bias)
        node.input.extend([""] * (3 - len(node.input)))
        node.input[2] = bias
    yield node
