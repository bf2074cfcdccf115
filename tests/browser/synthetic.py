"""A run folder of a made-up network of thousands of nodes, as large as `fix` with engines makes it.

    python -m tests.browser.synthetic NODES FOLDER

Numbers are drawn, and everything is filled in: guards, kept nodes, repairs, growth, the curve, all
engines with their layers, observations, evidence. Nothing is run: no model and no engine are there.
"""

import sys
from math import log2
from pathlib import Path

import msgspec
import numpy as np

from halfwise.fixing.curve import front
from halfwise.records import (
    Because,
    Cost,
    Curve,
    Detail,
    Growth,
    Guard,
    Histogram,
    InnerObservation,
    KeptNode,
    NodeName,
    Observation,
    Observations,
    Place,
    Plan,
    Point,
    Proof,
    Repair,
    Run,
    Step,
    TensorName,
    Worth,
    mask,
)
from halfwise.store import write_evidence, write_observations, write_run
from tests.browser.engines import made_engines
from tests.browser.evidence import made_evidence
from tests.browser.network import Made, network
from tests.unit.reporting.runs import FIX, HELDOUT, output_error, run, search, verdict

FP16_MAX = 65504.0
POINTS = 120
"""Plans that a search evaluates."""
NORMS = ("Pow", "ReduceMean_1", "Add", "Sqrt")
"""What a LayerNorm keeps that overflows in its square."""


class Drawn:
    """The parts of a run of a network with so many nodes."""

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self.network: list[Made] = network(nodes)
        self.compute = [node for node in self.network if node.computes]
        self.keep = [n for n in self.compute if _is_kept(n) and "norm1" in n.name]
        self.repaired = [n for n in self.compute if _is_kept(n) and "norm2" in n.name]
        self._rng = np.random.default_rng(seed)

    def guards(self) -> tuple[Guard, ...]:
        """Return two suspicions of each LayerNorm, and one of each Softmax."""
        found = []
        for node in (*self.keep, *self.repaired):
            if node.op == "Pow":
                found.append(_guard("square", node, ("ReduceMean_1",), self._beyond()))
            elif node.name.endswith("ReduceMean_1"):
                found.append(_guard("overflow", node, ("Add", "Sqrt"), self._beyond()))
        softmax = [node for node in self.compute if node.op == "Softmax"]
        return (*found, *(_guard("sum", n, (), FP16_MAX * 0.6, severity=0.6) for n in softmax))

    def plan(self, guards: tuple[Guard, ...]) -> Plan:
        """Return a plan that keeps the LayerNorms before attention, and repairs the others."""
        places = {name: place for place, g in enumerate(guards) for name in g.nodes}
        kept = []
        for node in self.keep:
            place = places[NodeName(node.name)]
            kept.append(
                KeptNode(
                    node=NodeName(node.name),
                    op=node.op,
                    guard=guards[place].kind,
                    error_without=1 + float(self._rng.lognormal(3, 2)),
                    because=Because(guard=place),
                )
            )
        parts: dict[str, list[NodeName]] = {}
        for node in self.repaired:
            parts.setdefault(node.name.rsplit("/", 1)[0], []).append(NodeName(node.name))
        return Plan(
            low="fp16",
            keep=tuple(kept),
            data_movement=(),
            constants=(),
            unsupported=(),
            minimal=True,
            candidates=len(self.compute),
            casts=2 * len(parts),
            repairs=tuple(_repair(part, tuple(nodes)) for part, nodes in parts.items()),
        )

    def growth(self) -> tuple[Growth, ...]:
        """Return an error that grows through the blocks, with peaks."""
        errors = np.cumsum(self._rng.exponential(2e-6, len(self.network)))
        peaks = errors * self._rng.lognormal(0, 0.7, len(errors))
        return tuple(
            Growth(
                node=NodeName(node.name),
                error=float(peaks[depth]),
                inherited=float(peaks[depth - 1]) if depth else 0.0,
            )
            for depth, node in enumerate(self.network)
        )

    def curve(self) -> Curve:
        """Return plans between nothing kept and everything, of which a few are worth having."""
        names = [NodeName(node.name) for node in self.compute]
        own = {node.name for node in self.keep}
        mine = [place for place, name in enumerate(names) if name in own]
        points = [_point(mine, 1.12, 0.71)]
        for trial in range(2, POINTS):
            share = trial / POINTS
            kept = np.sort(self._rng.permutation(len(names))[: int(share * len(names))]).tolist()
            error = float(self._rng.lognormal(3.4 - 8 * share, 0.6))
            points.append(_point(kept, 1 + 0.94 * share, error))
        best = front(points, points[0])
        return Curve(nodes=tuple(names), points=tuple(best), plan=best.index(points[0]))

    def run(self) -> Run:
        """Return the run."""
        guards = self.guards()
        made = made_engines(self.network, {node.name for node in self.keep})
        bad = output_error(max_abs=4.8, rel_max=1.0, snr_db=0.1, cosine=0.1, passed=False)
        return run(
            guards=guards,
            plan=self.plan(guards),
            growth=self.growth(),
            curve=self.curve(),
            engines=made,
            search=search(budget=400.0, spent=312.0),
            baseline=verdict(passed=False, outputs={"logits": bad}),
            verdict=verdict(level="engine"),
            worth=Worth(cost=1.12, fp32=1.94, measured=1.05, measured_fp32=3.9),
            warnings=("1 input looks made up: image.",),
            cost=Cost(
                evaluations=POINTS,
                seconds=2911.0,
                stage_seconds={"observe": 61.0, "search": 1640.0, "engines": 1180.0},
                peak_rss_bytes=3 * 2**30,
            ),
            next_step=(
                Step(
                    kind="prove",
                    names={"heldout": "DATA"},
                    command=("trtexec", "--loadEngine=runs/synthetic/model.engine"),
                ),
            ),
        )

    def observations(self) -> Observations:
        """Return the ranges and histograms of all tensors."""
        given = [(None, "", "image")]
        made = [(n.name, n.op, n.gives) for n in self.network]
        inner = [
            InnerObservation(
                node=NodeName(n.name), op=n.op, kind="square", value=self._beyond(), worst_sample=3
            )
            for n in self.compute
            if n.op == "Pow"
        ]
        return Observations(
            tensors=tuple(self._observation(*one) for one in [*given, *made]),
            inner=tuple(inner),
            samples=tuple(f"inputs.npz[{i}]" for i in range(48)),
        )

    def _observation(self, producer: str | None, op: str, tensor: str) -> Observation:
        beyond = producer is not None and producer.rsplit("/", 1)[1] in NORMS
        top = self._beyond() if beyond else float(self._rng.lognormal(1, 2))
        first = int(log2(top)) - 35
        bell = np.exp(-(((np.arange(36) - 26) / 6) ** 2)) * 1e6
        counts = self._rng.poisson(bell).tolist()
        detail = Detail(
            smallest_nonzero=2.0**first,
            overflow=0.1 if top > FP16_MAX else 0.0,
            flush=1e-4,
            subnormal=1e-3,
            histogram=Histogram(first=first, counts=tuple(counts), zeros=17),
            samples=32,
        )
        return Observation(
            tensor=TensorName(tensor),
            producer=None if producer is None else NodeName(producer),
            op=op,
            absmax=top,
            nonfinite=0,
            worst_sample=3,
            detail=detail,
        )

    def _beyond(self) -> float:
        return FP16_MAX * float(1 + self._rng.lognormal(2, 1))


def _is_kept(node: Made) -> bool:
    return "norm" in node.name and node.name.rsplit("/", 1)[1] in NORMS


def _guard(kind: str, node: Made, others: tuple[str, ...], value: float, **changed: float) -> Guard:
    part = node.name.rsplit("/", 1)[0]
    numbers: dict[str, float | int] = {"value": value, "limit": FP16_MAX}
    if kind != "sum":
        numbers |= {"share": 0.12, "samples": 32}
    facts = {"low": "FP16", "sample": "inputs.npz[3]", "op": node.op, "inside": node.name}
    if kind == "square":
        facts = {"low": "FP16", "sample": "inputs.npz[3]", "squared": node.reads[0]}
    return msgspec.convert(
        {
            "kind": kind,
            "node": node.name,
            "tensor": node.gives,
            "names": facts,
            "numbers": numbers,
            "fix": FIX,
            "nodes": (node.name, *(f"{part}/{name}" for name in others)),
            "severity": changed.get("severity", value / FP16_MAX),
        },
        Guard,
    )


def _repair(part: str, nodes: tuple[NodeName, ...]) -> Repair:
    return Repair(
        rule="one-node",
        nodes=nodes,
        identity="LayerNormalization(x, weight, bias)",
        guards=(Place(kind="square", node=NodeName(f"{part}/Pow")),),
        before=31.0,
        after=0.8,
        proof=Proof(samples={"calibration": 48}, repaired=2e-7, equal=False),
        advice=FIX,
    )


def _point(
    kept: list[int],
    cost: float,
    error: float,
) -> Point:
    return Point(
        kept=mask(kept),
        count=len(kept),
        cost=cost,
        error=error,
    )


def write_synthetic(folder: Path, nodes: int) -> Path:
    """Write such a run folder; return it."""
    drawn = Drawn(nodes)
    folder.mkdir(parents=True)
    write_run(folder, drawn.run())
    write_observations(folder, drawn.observations())
    write_evidence(folder, made_evidence(drawn.network, {node.name for node in drawn.keep}))
    return folder


if __name__ == "__main__":
    write_synthetic(Path(sys.argv[2]), int(sys.argv[1]))
    print(f"{sys.argv[2]}: judged on {len(HELDOUT)} samples, as far as one can say so")  # noqa: T201
