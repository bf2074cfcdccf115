"""Faults drawn from a seed, so that nothing can be tuned to those listed in `planted_trials`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import onnx
import onnx_ir as ir

from bench.planted_trials import DB20, DB30, Trial
from halfwise.metrics.difference import relative_rms
from halfwise.records import FP32_SNR_DB
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.model import read_model
from tests.fake_tensorrt.plan import Plan
from tests.fake_tensorrt.program import Program
from tests.fake_tensorrt.regions import Region, Wrong

DEPTHS = {"convolutions": (7, 60), "transformer": (1, 9), "recurrent": (5, 50), "branches": (4, 35)}
"""Fewest and most blocks: 50 to 500 nodes."""
MARGIN_DB = 6.0
"""Factor by which an output must be worse than what counts as right; else a fault is redrawn."""


def drawn_trials(seed: int) -> list[Trial]:
    """Return as many faults, of the same kinds, as `planted_trials.trials`."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    made = [*[_operator] * 6, *[_fusion] * 6, *[_unmarked] * 5, *[_batch] * 2, *[_nan] * 2]
    made += [_crash, _refusal, _refusal]
    return [_drawn(f"{seed}.{number}", make, rng) for number, make in enumerate(made)]


_Made = tuple[str, Wrong | Fault, tuple[int, ...]]
_Maker = Callable[[random.Random, Sequence[ir.Node]], _Made]


def _drawn(name: str, make: _Maker, rng: random.Random) -> Trial:
    """Return a fault that shows in an output."""
    while True:
        family = rng.choice(sorted(DEPTHS))
        low, high = DEPTHS[family]
        blocks = round(low * (high / low) ** rng.random())
        bare = Trial(name, family, blocks, Wrong())
        graph = read_model(onnx.load_from_string(bare.network().proto.SerializeToString())).graph
        told, fault, batches = make(rng, list(graph))
        trial = Trial(f"{name} {told}", family, blocks, fault, batches)
        if isinstance(fault, Fault) or shows(trial, fault):
            return trial


def shows(trial: Trial, wrong: Wrong) -> bool:
    """Return whether the fault puts an output clearly beyond what counts as right."""
    drawn = trial.network()
    model = read_model(onnx.load_from_string(drawn.proto.SerializeToString()))
    outputs = [str(v.name) for v in model.graph.outputs]
    plan = Plan(version="8.6.1", typing="weak", low=None, tf32=False, fp32=(), outputs=outputs)
    proto = ir.serde.serialize_model(model).SerializeToString()
    right, wronged = Program(plan, proto, []), Program(plan, proto, [wrong])
    limit = 10 ** ((MARGIN_DB - FP32_SNR_DB) / 20)
    for sample in drawn.samples:
        given, spoilt = right.run(sample), wronged.run(sample)
        if any(not relative_rms(given[name], spoilt[name]) <= limit for name in outputs):
            return True
    return False


def _region(rng: random.Random, nodes: Sequence[ir.Node], size: int) -> tuple[str, ...]:
    """Return a chain of `size` nodes that ends inside the graph, in order.

    No path leads out of it and back: no compiler could make one kernel of that.
    """
    while True:
        chain = [rng.choice(nodes)]
        while len(chain) < size:
            readers = _readers(chain[-1])
            if not readers:
                break
            chain.append(rng.choice(readers))
        if len(chain) == size and _readers(chain[-1]) and not _comes_back(chain):
            return tuple(str(node.name) for node in chain)


def _readers(node: ir.Node) -> list[ir.Node]:
    return [use.node for value in node.outputs for use in value.uses()]


def _comes_back(chain: Sequence[ir.Node]) -> bool:
    """Return whether a path leads out of the nodes and back to one of them."""
    waiting = [n for node in chain for n in _readers(node) if n not in chain]
    seen: set[ir.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in chain:
            return True
        if node not in seen:
            seen.add(node)
            waiting += _readers(node)
    return False


def _spoilt(rng: random.Random) -> tuple[str, float]:
    """Return how a result is spoilt, half of the times by little."""
    gross = ("noise", 1.0), ("roll", 1.0), ("zero", 1.0), ("scale", 0.5)
    subtle = ("noise", DB30), ("noise", DB20), ("scale", 0.1), ("noise", DB30)
    return rng.choice((gross, subtle)[rng.random() < 0.5])


def _wrong(rng: random.Random, nodes: Sequence[ir.Node], size: int, **how: object) -> Wrong:
    do, amount = _spoilt(rng)
    given = {"nodes": _region(rng, nodes, size), "do": do, "size": amount, **how}
    return Wrong(**given)  # type: ignore[arg-type]


def _operator(rng: random.Random, nodes: Sequence[ir.Node]) -> _Made:
    wrong = _wrong(rng, nodes, 1)
    if rng.random() < 0.5:
        return f"a node, {wrong.do}", wrong, (2, 2)
    op = rng.choice(sorted({node.op_type for node in nodes} - {"Reshape", "Transpose", "Squeeze"}))
    return f"every {op}, {wrong.do}", Wrong(ops=(op,), do=wrong.do, size=wrong.size), (2, 2)


def _fusion(rng: random.Random, nodes: Sequence[ir.Node]) -> _Made:
    wrong = _wrong(rng, nodes, rng.randint(2, 4), unless="between")
    return f"{len(wrong.nodes)} fused, {wrong.do}", wrong, (2, 2)


def _unmarked(rng: random.Random, nodes: Sequence[ir.Node]) -> _Made:
    wrong = _wrong(rng, nodes, rng.randint(1, 4), unless="touched")
    return f"{len(wrong.nodes)} unmarked, {wrong.do}", wrong, (2, 2)


def _batch(rng: random.Random, nodes: Sequence[ir.Node]) -> _Made:
    unless = rng.choice(("", "between"))
    wrong = _wrong(rng, nodes, rng.randint(1, 3), batch=rng.choice((1, 2, 4)), unless=unless)
    return f"{len(wrong.nodes)} at batch {wrong.batch}, {wrong.do}", wrong, (1, 2, 4)


def _nan(rng: random.Random, nodes: Sequence[ir.Node]) -> _Made:
    unless = rng.choice(("", "between", "touched"))
    wrong = _wrong(rng, nodes, rng.randint(1, 3), do="nan", unless=unless)
    return f"NaN of {len(wrong.nodes)}, {unless or 'always'}", wrong, (2, 2)


def _crash(rng: random.Random, nodes: Sequence[ir.Node]) -> _Made:
    region = Region(nodes=_region(rng, nodes, rng.randint(2, 3)))
    return "a crash", Fault("build", rng.choice(("segv", "abort")), region=region), (2, 2)


def _refusal(rng: random.Random, nodes: Sequence[ir.Node]) -> _Made:
    unless = rng.choice(("", "between"))
    region = Region(nodes=_region(rng, nodes, rng.randint(2, 3)), unless=unless)
    return "a refusal", Fault("build", rng.choice(("foreign", "memory")), region=region), (2, 2)
