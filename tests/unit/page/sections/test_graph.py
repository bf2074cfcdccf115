import json
from typing import Any

from halfwise.page.sections import graph, script_json
from halfwise.records import (
    EngineLayer,
    Growth,
    NodeName,
    NodePrecision,
    RunEvidence,
    Source,
    replace,
)
from tests.unit.page.graphs import sketched, stacked
from tests.unit.page.test_document import stored
from tests.unit.reporting.engine_runs import engines, proof, result
from tests.unit.reporting.runs import guard, kept, observation, observations, plan

LINES, WEIGHTS = stacked(["blocks.0/", "blocks.1/"])
SHOWN = sketched(LINES, constants=WEIGHTS)
UP, ACT = NodeName("blocks.0/up"), NodeName("blocks.0/act")


def section_data(evidence: RunEvidence, **changed: Any) -> Any:
    section = graph(replace(stored(**changed), evidence=evidence, observations=observations()))
    assert section is not None
    return json.loads(script_json(section.data))


def test_a_run_without_its_graph_has_no_section() -> None:
    assert graph(stored()) is None
    assert graph(replace(stored(), evidence=RunEvidence(graph=None))) is None


def test_nodes_tensors_and_boxes_are_told() -> None:
    data = section_data(RunEvidence(graph=SHOWN))
    assert data["names"] == [name for name, _, _ in LINES]
    assert data["tensors"] == list(SHOWN.tensors)
    assert data["ops"] == [op for _, op, _ in LINES]
    assert data["shapes"] == [*SHOWN.shapes]
    assert data["boxes"] == {"labels": ["blocks.0", "blocks.1"], "parents": [-1, -1]}
    assert set(data["precision"]) == {"FP32"}


def test_what_is_known_of_nodes_stands_at_their_places() -> None:
    found = plan((kept(UP, reason="Why."),))
    data = section_data(
        RunEvidence(graph=SHOWN),
        plan=found,
        guards=(guard(ACT),),
        growth=(Growth(node=ACT, error=float("inf"), inherited=0.5),),
    )
    up, act = (data["facts"][str(data["names"].index(name))] for name in (UP, ACT))
    assert up == {"told": [["kept", "FP32"], ["reason", "Why."]]}
    assert [kind for kind, _ in act["told"]] == ["suspected"]
    assert (act["error"], act["inherited"]) == ("Infinity", 0.5)
    assert len(data["facts"]) == 2


def test_largest_values_and_samples() -> None:
    seen = observations(tensors=(observation("t", UP, 7e4),))
    section = graph(replace(stored(), evidence=RunEvidence(graph=SHOWN), observations=seen))
    assert section is not None
    data = json.loads(script_json(section.data))
    (facts,) = data["facts"].values()
    assert (facts["absmax"], facts["sample"]) == (7e4, seen.samples[1])
    assert data["low"]["max"] == 65504


def test_layers_of_the_engine_name_nodes_of_the_graph() -> None:
    layer = EngineLayer(
        name="a+b",
        type="kgen",
        nodes=(UP, NodeName("gone"), ACT),
        precision="fp16",
    )
    named = EngineLayer(name=f"{UP} + {ACT}", type="kgen", nodes=(UP, ACT), precision="fp16")
    lost = EngineLayer(name="c", type="kgen", nodes=(NodeName("gone"),), precision="fp16")
    nodes = (NodePrecision(node=UP, precision="fp16"),)
    row = engines().row
    assert row is not None
    row = replace(row, proof=proof(nodes=nodes, layers=(layer, named, lost)))
    data = section_data(
        RunEvidence(graph=SHOWN), engines=engines(results=(result("FP16", 4, 1.0), row))
    )
    up, act = (data["names"].index(name) for name in (UP, ACT))
    assert [told["name"] for told in data["layers"]] == ["a+b", f"{UP} + {ACT}"]
    assert data["layers"][0]["nodes"] == [up, act]
    assert data["engine"] == {str(up): "fp16"}


def test_each_node_leads_to_its_line() -> None:
    own = Source(module="blocks.0", kind="M", file="m.py", line=7, function="f", text="x @ w")
    sources = (own, Source(module="blocks.1"))
    places = (0, 1, *[None] * (len(LINES) - 2))
    shown = replace(SHOWN, sources=places)
    data = section_data(RunEvidence(graph=shown, sources=sources))
    assert data["sources"][:3] == [0, 1, None]
    assert [each["module"] for each in data["origins"]] == ["blocks.0", "blocks.1"]
    assert (data["origins"][0]["file"], data["origins"][0]["line"]) == ("m.py", 7)
