"""Polygraphy's `--check` command: do an engine's outputs match ONNX Runtime's in FP32?

    PYTHON polygraphy_check.py ENGINE ARRAYS.npz TOLERANCE RECORD

It runs in the Python that imports tensorrt and polygraphy, and needs nothing of this project.
`ARRAYS.npz` has `in:NAME` and `out:NAME`. A line of JSON is appended to `RECORD`; the exit code is
0 if the largest absolute error is within the tolerance, else 1.
"""

import json
import sys
import time

import numpy as np


def main():
    """Run the engine once and compare."""
    from polygraphy.backend.common import BytesFromPath  # noqa: PLC0415 - slow, and not here
    from polygraphy.backend.trt import EngineFromBytes, TrtRunner  # noqa: PLC0415

    engine, arrays, tolerance, record = sys.argv[1:]
    started = time.time()
    stored = np.load(arrays)
    inputs = {n[3:]: stored[n] for n in stored.files if n.startswith("in:")}
    wanted = {n[4:]: stored[n] for n in stored.files if n.startswith("out:")}
    with TrtRunner(EngineFromBytes(BytesFromPath(engine))) as runner:
        found = runner.infer(feed_dict=inputs)
        errors = [np.abs(np.asarray(found[n], np.float64) - a).max() for n, a in wanted.items()]
    error = float(max(errors))
    line = {"error": repr(error), "start": started, "seconds": time.time() - started}
    with open(record, "a", encoding="utf-8") as file:  # noqa: PTH123 - as elsewhere in that Python
        file.write(json.dumps(line) + "\n")
    # NaN passes no comparison.
    return 0 if error <= float(tolerance) else 1


if __name__ == "__main__":
    sys.exit(main())
