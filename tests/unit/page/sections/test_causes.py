from typing import Any

from halfwise.page.document import document
from halfwise.page.sections import causes
from halfwise.records import Graph, NodeName, RunEvidence, Source, replace
from tests.unit.page.reading import Read
from tests.unit.page.test_document import NASTY, stored
from tests.unit.reporting.runs import guard, kept, observation, observations, plan


def data(made) -> Any:
    section = causes(made)
    assert section is not None
    return section.data


def evidence(*nodes: str) -> RunEvidence:
    """One line of code for all nodes; the first is gone from the graph."""
    source = Source(
        module="blocks.0", kind="net.Norm", file="/me/net.py", line=7, function="f", text=NASTY
    )
    graph = Graph(
        nodes=tuple(map(NodeName, nodes[1:])),
        ops=("Pow",) * (len(nodes) - 1),
        scopes=("blocks/0",) * (len(nodes) - 1),
        reads=((),) * (len(nodes) - 1),
        gives=((),) * (len(nodes) - 1),
        sources=(None,) * (len(nodes) - 1),
        tensors=(),
        types=(),
        shapes=(),
        constants=(),
        inputs=(),
        outputs=(),
    )
    gone = {NodeName(nodes[0]): 0}
    return RunEvidence(graph=graph, sources=(source,), replaced=gone)


def ill(*nodes: str):
    keep = tuple(kept(node, guard="square") for node in nodes)
    guards = tuple(guard(node, tensor=f"{node}_out") for node in nodes)
    seen = observations(tensors=tuple(observation(f"{n}_out", n, 1e6) for n in nodes))
    return replace(stored(guards=guards, plan=plan(keep)), observations=seen)


def test_each_place_has_its_histogram_and_its_line() -> None:
    found = data(replace(ill("a", "b"), evidence=evidence("a", "b")))
    (group,) = found["groups"]
    assert (group["state"], group["label"], group["more"]) == ("cause", "Cause", 0)
    first, second = group["found"]
    assert (first["node"], first["tensor"]) == ("a", "a_out")
    assert (first["place"]["file"], first["place"]["line"]) == ("/me/net.py", 7)
    other = second["place"]
    assert (other["module"], other["kind"], other["file"]) == ("blocks/0", "", "")
    assert first["histogram"]["overflow"] > 0
    assert found["format"]["limit"] == 65520


def test_without_evidence_and_observations_the_words_are_left() -> None:
    made = replace(ill("a"), observations=None)
    (one,) = data(made)["groups"][0]["found"]
    assert (one["place"], one["histogram"]) == (None, None)


def test_more_places_than_a_page_tells_are_counted() -> None:
    (group,) = data(ill(*map(str, range(403))))["groups"]
    assert (len(group["found"]), group["more"]) == (400, 3)


def test_hostile_lines_of_code_stay_text() -> None:
    made = replace(ill(NASTY), evidence=evidence(NASTY, "b"))
    read = Read(document(made))
    (group,) = read.data("causes")["groups"]
    assert group["found"][0]["node"] == NASTY
    assert group["found"][0]["place"]["text"] == NASTY


def test_a_run_without_causes_has_no_such_section() -> None:
    assert causes(stored(guards=(), plan=None)) is None
