"""Write files in Polygraphy's format by hand, after its own `json/serde.py`."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def encoded(array: NDArray[Any]) -> dict[str, str]:
    """Return an array as `Encoder` writes it."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    text = base64.b64encode(stream.getvalue()).decode()
    return {"array": text, "polygraphy_class": "ndarray"}


def write_feeds(path: Path, feeds: Sequence[Arrays]) -> Path:
    """Write what `--save-inputs` writes."""
    content = [{name: encoded(array) for name, array in feed.items()} for feed in feeds]
    path.write_text(json.dumps(content, indent=4))
    return path


def write_runners(path: Path, runners: Mapping[str, Sequence[Arrays]]) -> Path:
    """Write what `--save-outputs` writes."""
    entries = [[name, [_iteration(name, o) for o in outputs]] for name, outputs in runners.items()]
    path.write_text(json.dumps({"lst": entries, "polygraphy_class": "RunResults"}, indent=4))
    return path


def _iteration(runner: str, outputs: Arrays) -> dict[str, Any]:
    lazy = {
        name: {"values": encoded(array), "polygraphy_class": "LazyArray"}
        for name, array in outputs.items()
    }
    return {
        "outputs": lazy,
        "runtime": 0.001,
        "runner_name": runner,
        "polygraphy_class": "IterationResult",
    }
