"""Save what goes wrong, with its real inputs, as a folder for a bug report."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import onnx
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.fixing.engines.workbench import save
from halfwise.formats import LOW_FORMATS
from halfwise.graph.model import normalise
from halfwise.records import EngineDiagnosis
from halfwise.tools.compare.sides import all_low
from halfwise.tools.diagnose.transplant import Transplants

FOLDER = "reproducer"
_SETTINGS = 'SETTINGS = {"limit_db": 60.0}  # replaced where this file is written\n'


def save_reproducer(transplants: Transplants, found: EngineDiagnosis, folder: Path) -> str | None:
    """Write the first place of the first fault to `folder`/reproducer; return its name.

    It holds `model.onnx`, which the ONNX checker accepts, `inputs.npz` and `expected.npz` (one
    sample each, with a sample axis), and `reproduce.py`, which needs only tensorrt and NumPy.
    Inputs come from the right side. None without a fault, or if it cannot be cut out.
    """
    if not found.faults:
        return None
    fault = frozenset(found.faults[0].places[0])
    try:
        piece = transplants.pieces.cut([fault])
        network = normalise(piece.model.clone(), path=None, sha256="")
    except CaseError:
        return None
    engines, kind = transplants.engines, transplants.kind
    strong, low = engines.builds.typing == "strong", kind if kind in LOW_FORMATS else None
    place = folder / FOLDER
    place.mkdir(parents=True)
    typed = strong and low is not None
    model = all_low(network, LOW_FORMATS[kind], engines.settings) if typed else network.model
    save(model, place / "model.onnx")
    onnx.checker.check_model(place / "model.onnx", full_check=True)
    _save_arrays(place / "inputs.npz", piece.feed)
    names = piece.outputs.get(fault, ())
    right = transplants.values(names)
    _save_arrays(place / "expected.npz", {name: right[name] for name in names})
    settings = {
        "limit_db": found.limit_db,
        "low": low,
        "strong": strong,
        "tf32": kind == "tf32",
        "optimization_level": engines.engine_settings.optimization_level,
        "tactic_sources": engines.engine_settings.tactic_sources,
    }
    text = Path(__file__).with_name("reproduce.py").read_text(encoding="utf-8")
    text = text.replace(_SETTINGS, f"SETTINGS = {settings!r}\n")
    (place / "reproduce.py").write_text(text, encoding="utf-8")
    return FOLDER


def _save_arrays(path: Path, arrays: Mapping[Any, NDArray[Any]]) -> None:
    """Write arrays as .npz, each with a sample axis.

    `np.savez` takes names as keywords, and cannot take "file".
    """
    with ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array[np.newaxis], allow_pickle=False)
