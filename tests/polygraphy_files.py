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
