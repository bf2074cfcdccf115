"""Why engines with INT8 are further off than their emulation: which node, which setting.

    python -m bench.gpu.int8_causes --trt-python PYTHON [--seconds S] [NAME:KIND …]

For each small model of `bench.gpu.int8` (KIND: "all" nodes that can be INT8, or the "plan"), the
engine is built repeatedly: without the constraints that keep nodes in FP32, and without FP16. If it
is far off without FP16 too, halves of the INT8 nodes are built, down to single ones. If KIND is a
node, "all forms" or "plan forms", the engine is built with other forms of the weights' pairs and
other settings. The result, `gpu_int8_causes.json`, is rewritten after every engine; results of
other jobs stay.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bench.figures import Result, machine, reported, table
from bench.gpu.figures import RESULTS
from bench.gpu.int8 import samples_of
from bench.gpu.int8_forms import FORMS
from bench.gpu.int8_plans import FILE, REL_MAX, SMALL, Planned, read
from bench.gpu.jobs import Host, add_host, host_of
from bench.gpu.pipe import Pipe, Refused, shape_profile
from halfwise.emulation.ort import Session
from halfwise.fixing.int8.placing import quantised
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, node_name
from halfwise.graph.quantised import quantised_nodes
from halfwise.graph.roles import Role, roles_of
from halfwise.judging.judge import judge, judge_outputs
from halfwise.records import Criterion, NodeName
from halfwise.tensorrt.constrain import constraints, readable
from tests.unit.fixing.int8.products import peaks_of

NAME = "gpu_int8_causes"
AGAIN = 3
FAR, LEAST = 2.5, 0.4
"""An engine is far off if its error exceeds this multiple of the predicted one, or of this least
value."""
Row = dict[str, Any]


class Model:
    """One small model, its data, and what engines of it showed.

    Attributes:
        rows: A row per engine: what it is, its error and the predicted one over what is allowed,
            or why there is none.
    """

    def __init__(self, name: str, plan: Planned, pipe: Pipe) -> None:
        made = SMALL[name]()
        self.name, self.plan, self.pipe, self.rows = name, plan, pipe, list[Row]()
        self.network = network_from_proto(made.model)
        seen, self.heldout = (samples_of(self.network, a) for a in (made.inputs, made.heldout))
        session = Session(self.network.model)
        self.references = [session.run(sample) for sample in self.heldout]
        self.kept = frozenset(map(NodeName, (*plan.keep, *plan.movement)))
        self.peaks = peaks_of(self.network, seen)

    def build(
        self,
        what: str,
        int8: frozenset[NodeName],
        form: Callable[[Network], Network] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: bool,
    ) -> Row:
        """Build and judge an engine; `fp16` and `constrained` are True unless told otherwise.

        `form` changes the pairs of weights; `settings` are further build settings.
        """
        placed = quantised(self.network, int8, self.peaks)
        network = readable(form(placed) if form else placed, "8.6")
        roles = roles_of(network)
        pinned = frozenset(name for name, role in roles.items() if role.role is Role.PINNED)
        fp32 = self.kept | pinned | frozenset(quantised_nodes(network))
        mixed = rewrite(network, roles, fp32, FP16, fixed=frozenset(), low_io=frozenset())
        given = (self.heldout, self.references, Criterion(rel_max=REL_MAX), None)
        told = judge(mixed.model, *given).verdict
        row: Row = {"what": what, "nodes": len(int8), "foretold": _off(told)}
        asked = constraints(network, roles, fp32) if options.get("constrained", True) else ()
        first = self.heldout[0]
        profile = shape_profile({name: (a.shape,) * 3 for name, a in first.items()})
        config: Row = {"low": "fp16" if options.get("fp16", True) else None, "keep": [*asked]}
        config |= {"profiles": [profile], "cached": True, **(settings or {})}
        try:
            proto = ir.serde.serialize_model(network.model).SerializeToString()
            built = self.pipe.build(proto, **config)
            engine = built.header["engine"]["sha256"]
            found = [self.pipe.run(engine, sample) for sample in self.heldout]
            row["measured"] = _off(judge_outputs(found, *given).verdict)
        except Refused as refused:
            row["refused"] = "\n".join([str(refused), *refused.answer.get("log", ())])[-600:]
        self.rows.append(row)
        print(self.name, row, flush=True)
        return row

    def vary(self, nodes: Collection[str], step: Callable[[], None], **options: bool) -> None:
        """Build one set of nodes in INT8 in other forms and with other settings."""
        every = frozenset(map(NodeName, nodes))
        for what, form in FORMS.items():
            self.build(what, every, form, **options)
            step()
        for what, settings in SETTINGS.items():
            self.build(what, every, settings=settings, **options)
            step()

    def run(self, kind: str, end: float, step: Callable[[], None]) -> None:
        """Build all."""
        if kind not in ("all", "plan"):
            every = {
                "all forms": (*self.plan.int8, *self.plan.left_out),
                "plan forms": self.plan.int8,
            }
            if kind in every:
                self.vary(every[kind], step)
            else:
                self.vary([kind], step, constrained=False, fp16=False)
            return
        chosen = (*self.plan.int8, *self.plan.left_out) if kind == "all" else self.plan.int8
        every = frozenset(map(NodeName, chosen))
        for _ in range(AGAIN):
            self.build("as planned", every)
            step()
        self.build("no constraint", every, constrained=False)
        step()
        row = self.build("neither constraint nor FP16", every, constrained=False, fp16=False)
        step()
        nodes = [name for name in map(node_name, self.network.nodes()) if name in every]
        while _is_far(row) and len(nodes) > 1:
            half = len(nodes) // 2
            for part in (nodes[:half], nodes[half:]):
                if time.monotonic() > end:
                    return
                what = f"no FP16, INT8 from {part[0]} to {part[-1]}"
                row = self.build(what, frozenset(part), constrained=False, fp16=False)
                step()
                if _is_far(row):
                    nodes = part
                    break
            else:
                return


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "without JIT convolutions": {"tactic_sources": ["EDGE_MASK_CONVOLUTIONS"]},
    "without edge mask convolutions": {"tactic_sources": ["JIT_CONVOLUTIONS"]},
    "optimization level 0": {"optimization_level": 0},
    "optimization level 5": {"optimization_level": 5},
}


def _off(verdict: Any) -> float:
    return max(error.rel_max for error in verdict.outputs.values()) / REL_MAX


def _is_far(row: Row) -> bool:
    return float(row.get("measured", 0)) > FAR * max(row["foretold"], LEAST)


def measure(
    jobs: list[str],
    host: Host,
    end: float,
    save: Callable[[Result], None],
    known: Mapping[str, list[Row]],
) -> Result:
    """Return the results of all models' engines; `save` receives intermediate results.

    `known` are rows of other jobs.
    """
    plans = read(FILE)
    with Pipe([host.trt_python], host.sources()) as pipe:
        command = "python -m bench.gpu.int8_causes --trt-python PYTHON " + " ".join(jobs)
        told = {**machine(), **pipe.told()}
        result = Result(NAME, command, [], None, machine=told, details=dict(known))

        for job in jobs:
            name, _, kind = job.partition(":")
            model = Model(name, plans[name], pipe)

            def step(job: str = job, model: Model = model) -> None:
                result.details[job] = [
                    {key: repr(v) if isinstance(v, float) else v for key, v in row.items()}
                    for row in model.rows
                ]
                save(result)

            if time.monotonic() < end:
                model.run(kind or "all", end, step)
        for job, rows in result.details.items():
            for row in rows:
                found = row.get("measured", "refused")
                note = row.get("refused", f"foretold {float(row['foretold']):.3g}")
                what = f"{job}: {row['what']}: error over what is allowed"
                measured = found if found == "refused" else float(found)
                result.figures.append(reported(what, measured, note))
        save(result)
    return result


def main() -> int:
    """Run the models that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="+", metavar="NAME:KIND")
    add_host(parser)
    parser.add_argument("--work", type=Path, help="unused: nothing is kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=400.0, help="begins no more halves later")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    file = given.results / f"{NAME}.json"
    known = json.loads(file.read_text(encoding="utf-8"))["details"] if file.exists() else {}
    save = partial(_save, given.results)
    result = measure(given.jobs, host_of(given), end, save, known)
    print(table([result]), flush=True)
    return 0


def _save(folder: Path, result: Result) -> None:
    result.save(folder)


if __name__ == "__main__":
    sys.exit(main())
