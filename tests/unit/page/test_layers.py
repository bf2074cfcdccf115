from typing import Any

from halfwise.page.engines import Layers
from halfwise.records import EngineLayer, NodeName
from tests.unit.reporting.engine_runs import proof


def layer(name: str, *nodes: str, **changed: Any) -> EngineLayer:
    values = {"type": "Conv", "precision": "fp16", "nodes": tuple(map(NodeName, nodes))}
    return EngineLayer(name=name, **values | changed)


def test_layers_are_columns_and_a_name_that_follows_from_nodes_is_not_there() -> None:
    layers = Layers()
    fused = layer("a + b", "a", "b", inputs=("fp16", "fp16"), outputs=("fp32",), milliseconds=0.5)
    copy = layer("Reformat", precision="other", weights="fp16", tactic="copy")
    first: Any = layers.of(proof(layers=(fused, copy), findings=("Not as asked.",)))
    second = layers.of(proof(layers=(layer("c", "c"), layer("a + b", "a", "b"))))
    shared: Any = layers.shared()
    assert (first["name"], first["nodes"], first["ms"]) == ([-1, 0], ["0-1", ""], [0.5, None])
    assert (second["name"], second["nodes"]) == ([-1, -1], ["2", "0-1"])
    assert shared["nodes"] == [0, "a", 0, "b", 0, "c"]
    assert shared["names"] == [0, "Reformat"]
    words: Any = {k: [shared["words"][i] for i in first[k]] for k in ("type", "precision", "types")}
    assert words["precision"] == ["FP16", "other"]
    assert words["types"] == ["fp16 → fp32", ""]
    assert first["findings"] == ("Not as asked.",)
    shares: Any = first["shares"]
    assert shares["time"] == {"FP16": 0.8, "FP32": 0.15, "other": 0.05}
