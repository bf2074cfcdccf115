from halfwise.page.sections import engine
from halfwise.records import GivenEngine, NodeName, NodePrecision, replace
from tests.unit.page.test_document import stored
from tests.unit.reporting.engine_runs import build, engines, latency, proof

PROOF = proof(nodes=(NodePrecision(node=NodeName("a"), precision="fp16"),))


def titles(**changed) -> list[str]:
    section = engine(stored(**changed))
    assert section is not None
    return [part.title for part in section.facts]


def test_the_engines_of_a_device_and_the_layers_of_the_delivered_one_are_told() -> None:
    row = engines().row
    assert row is not None
    found = titles(engines=engines(results=(replace(row, proof=PROOF),)))
    assert any(title.startswith("Errors and speed of the engines") for title in found)
    assert "Nodes of the model" in found
    one, other = engines(), engines(delivered=None, results=())
    assert "One plan on each device, on held-out samples" in titles(engines=one, further=(other,))


def test_the_users_own_engine_has_its_layers() -> None:
    made = engines()
    assert made.delivered is not None
    given = GivenEngine(
        worker=made.worker,
        engine=made.delivered,
        profiles=(),
        shapes=(),
        latency=latency(1.0),
        build=build(1, "given"),
        proof=PROOF,
    )
    assert "Nodes of the model" in titles(given_engine=given)
    bare = replace(given, build=None, proof=None)
    assert titles(given_engine=bare) == ["Engine", "Speed"]


def test_a_run_without_engines_has_no_such_section() -> None:
    assert engine(stored()) is None
