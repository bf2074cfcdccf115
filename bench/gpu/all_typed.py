"""Engines of one plan, once as built by halfwise and once with every layer typed.

    python -m bench.gpu.all_typed --trt-python PYTHON --models DIR NAME …

Weak typing leaves to the builder what nothing constrains. Here a copy of the worker also sets all
other layers to FP16, and in a third engine the constants that FP32 layers read to FP32. Each
model's first recorded plan (`gpu_rounds.json`) and the plan that keeps nothing are built so, judged
as a run judges, and timed in turns. `bench.gpu.networks` makes the models. Writes
`bench/results/gpu_all_typed.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.gpu.jobs import add_host, host_of
from bench.gpu.pipe import WORKER, Pipe, Refused
from bench.gpu.race import Judge, Racer, take_turns
from bench.runs import ROOT
from halfwise.graph.movement import carried
from halfwise.graph.roles import roles_of
from halfwise.options.loading import load_case
from halfwise.options.options import Data
from halfwise.records import Criterion, NodeName
from halfwise.tensorrt.constrain import constraints

RESULTS = ROOT / "bench" / "results"
ROUNDS = RESULTS / "gpu_rounds.json"
FILE = RESULTS / "gpu_all_typed.json"
VARIABLE = "HALFWISE_BENCH_TYPED"
TODAY, LOW, CONSTANTS = "", "low", "low constants"
"""What is typed beside the kept nodes: nothing, all other layers, these and kept constants."""
MARGIN, LEVEL, MOST_KEPT = 0.8, 2, 20
_EDITS = {
    """ takes no precision"
        return constrained, why
""": f""" takes no precision"
        mode, pinned = os.environ.get("{VARIABLE}", ""), set()
        kinds = [(layer.type.name, layer.get_output(0)) for layer in layers]
        made = {{tensor.name: i for i, (kind, tensor) in enumerate(kinds) if kind == "CONSTANT"}}
        read = [layers[i].get_input(k) for i in constrained for k in range(layers[i].num_inputs)]
        for tensor in read if "constants" in mode else ():
            source = None if tensor is None else made.get(tensor.name)
            if source is not None and tensor.dtype == self.trt.float32:
                pinned.add(source)
                layers[source].precision = self.trt.float32
                layers[source].set_output_type(0, self.trt.float32)
        floats = (self.trt.float32, self.trt.float16)
        for index, layer in enumerate(layers) if "low" in mode and self.config["low"] else ():
            outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
            own = [t for t in outputs if t is not None and t.dtype in floats]
            casts = layer.type.name == "IDENTITY" and layer.get_input(0).dtype != outputs[0].dtype
            never = layer.type.name in NEVER_CONSTRAINED or any(t.is_shape_tensor for t in own)
            if index in constrained or index in pinned or casts or never or not own:
                continue
            layer.precision = self.trt.float16
            for i, tensor in enumerate(outputs):
                if tensor in own and not tensor.is_network_output:
                    layer.set_output_type(i, self.trt.float16)
        return constrained, why
""",
    """if not self.strong and config["keep"]:""": f"""typed = config["low"] and os.environ.get(
            "{VARIABLE}"
        )
        if not self.strong and (config["keep"] or typed):""",
}


def edited() -> str:
    """Return the worker's text with the types that the variable asks for."""
    text = WORKER.read_text(encoding="utf-8")
    for old, new in _EDITS.items():
        if text.count(old) != 1:
            raise RuntimeError(f"The worker has changed: {old.strip()!r} is not there once.")
        text = text.replace(old, new)
    return text


def first_plan(name: str) -> tuple[str, ...]:
    """Return the first recorded plan of a model that keeps some nodes, but few."""
    runs = json.loads(ROUNDS.read_text(encoding="utf-8"))
    rounds = (kept for run in runs if run["name"] == name for kept, _ in run["rounds"])
    return tuple(next(kept for kept in rounds if 0 < len(kept) <= MOST_KEPT))


def measured(name: str, folder: Path, pipes: dict[str, Pipe]) -> list[dict[str, Any]]:
    """Build, judge and time all engines of a model."""
    data = Data(folder / "inputs.npz", heldout=folder / "heldout.npz")
    case = load_case(folder / "model.onnx", data, Criterion())
    judge, model = Judge(case, case.calibration, MARGIN), (folder / "model.onnx").read_bytes()
    roles, racers = roles_of(case.network), [Racer("fp32", (), None, tf32=False)]
    for keep in ((), first_plan(name)):
        kept = frozenset(map(NodeName, keep))
        asked = constraints(case.network, roles, kept | carried(case.network, roles, kept))
        modes = (TODAY, LOW, CONSTANTS) if keep else (TODAY, LOW)
        racers += [Racer(m, keep, "fp16", tf32=False, asked=tuple(asked)) for m in modes]
    for racer in racers:
        pipe = pipes.get(racer.name, pipes[TODAY])
        config: dict[str, Any] = {
            "low": racer.low,
            "keep": racer.asked,
            "optimization_level": LEVEL,
        }
        try:
            built = pipe.build(model, cached=True, **config)
            racer.engine, racer.seconds = built.header["engine"]["sha256"], built.seconds
            judge.judge(racer, pipe)
        except Refused as refused:
            racer.failure = str(refused)[:300]
        print(name, racer.name, len(racer.keep), racer.excess, racer.failure, flush=True)
    going = [racer for racer in racers if not racer.failure]
    take_turns(going, case.heldout[0], pipes[TODAY], math.inf)
    return [racer.told() for racer in racers]


def main() -> None:
    """Measure the named models, one after another; each is stored at once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_host(parser)
    parser.add_argument("names", nargs="+")
    given = parser.parse_args()
    host = host_of(given)
    with ExitStack() as stack:
        worker = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "worker.py"
        worker.write_text(edited(), encoding="utf-8")
        pipes = {}
        for mode in (TODAY, LOW, CONSTANTS):
            command = ["env", f"{VARIABLE}={mode}", host.trt_python]
            pipes[mode] = stack.enter_context(Pipe(command, host.sources(), worker))
        told: dict[str, Any] = {"where": pipes[TODAY].told(), "models": {}}
        for name in given.names:
            told["models"][name] = measured(name, (host.models or Path()) / name, pipes)
            text = json.dumps(told, indent=1)
            FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
