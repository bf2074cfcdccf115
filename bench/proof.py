"""FP32's error against FP64 on a model, and the time of FP64.

    python -m bench.proof MODEL.onnx INPUTS [--samples N] [--repaired REPAIRED.onnx]

For each sample: the error of FP32 against FP64 over an output's largest value, and the seconds of
FP64 over those of FP32. With a repaired model, likewise of the original with the repairs that its
metadata names, and the proof with its seconds over those of one run.
"""

import argparse
import time
from pathlib import Path

from halfwise.case import Sample
from halfwise.emulation.double import DoubleSession
from halfwise.emulation.ort import Session
from halfwise.fixing.repair.making import marked, repaired
from halfwise.fixing.repair.proof import error_of, prove
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network
from halfwise.metrics import Outputs
from halfwise.options.loading import load_case
from halfwise.options.options import understand


def timed(session: Session | DoubleSession, sample: Sample) -> tuple[Outputs, float]:
    """Return outputs and seconds."""
    started = time.perf_counter()
    return session.run(sample), time.perf_counter() - started


def main() -> None:
    """Print a line per sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--repaired", type=Path)
    given = parser.parse_args()
    request = understand(given.inputs, {})
    case = load_case(given.model, request.data, request.criterion)
    networks: dict[str, Network] = {"original": case.network}
    if given.repaired is not None:
        named = marked(load_network(given.repaired).model)
        networks[f"with {len(named)} repairs"] = repaired(case.network, named)
    fp64 = DoubleSession(case.network.model)
    sessions = {name: Session(network.model) for name, network in networks.items()}
    for sample in case.calibration.select(range(min(given.samples, len(case.calibration)))):
        truth, slow = timed(fp64, sample)
        for name, session in sessions.items():
            found, seconds = timed(session, sample)
            errors = {n: error_of(truth[n], array, 0.0) for n, array in found.items()}
            told = ", ".join(f"{n} {error:.2e}" for n, error in errors.items())
            print(f"{name}: {told}; FP64 takes {slow / seconds:.0f} × as long")
    if given.repaired is not None:
        started = time.perf_counter()
        proof = prove(case.network, [*networks.values()][1], case.calibration, case.heldout)
        print(f"{proof!r}; {(time.perf_counter() - started) / seconds:.0f} × as long as one run")


if __name__ == "__main__":
    main()
