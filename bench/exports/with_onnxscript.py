"""What onnxscript's converter, optimizer and fusion rules make of a folder of models, as JSON.

Usage: python with_onnxscript.py FOLDER OPSET
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import onnx_ir as ir
from onnxscript import optimizer, version_converter
from onnxscript.rewriter.rules.fusion import _layer_norm, _rms_normalization


def main() -> int:
    folder, opset = Path(sys.argv[1]), int(sys.argv[2])
    found = {}
    for path in sorted(folder.glob("*.onnx")):
        try:
            model = ir.load(path)
            version_converter.convert_version(model, target_version=opset, fallback=True)
            optimizer.optimize(model)
            _layer_norm.fuse_layer_normalization(model)
            _rms_normalization.fuse_rms_normalization(model)
            found[path.stem] = Counter(node.op_type for node in model.graph)
        except Exception as error:  # noqa: BLE001 - what fails is what is asked
            found[path.stem] = {"failed": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
