from halfwise.records import NodeName
from halfwise.reporting.parts import MOST_ROWS, Table
from halfwise.tools.compare.report import comparison as shown
from tests.unit.reporting.comparisons import comparison, node


def parts(found):
    return {part.title: part for part in shown(found).parts}


def texts(found):
    return " ".join(
        " ".join(" ".join(row) for row in part.rows)
        if isinstance(part, Table)
        else " ".join(part.lines)
        for part in shown(found).parts
    )


def test_the_first_divergence_is_the_title():
    report = shown(comparison())
    assert report.title == "First divergence: b"
    assert report.passed is False
    assert "A: ONNX Runtime, FP32 · B: engine" in report.about


def test_what_each_part_tells():
    found = parts(comparison())
    assert found["Born there"].lines[0].startswith("B, given these very inputs, is off by inf")
    assert [row[2] for row in found["Outputs"].rows] == ["off", "good"]
    assert [row[0] for row in found["On its way to the output (2 nodes)"].rows] == ["b", "c"]
    assert [row[0] for row in found["Errors are born elsewhere too (1 node)"].rows] == ["d"]
    assert found["What else to know"].lines == (
        "1 node constant, folded away",
        "1 node fused away in the engine",
        "1 node not looked at",
        "Marking tensors did not change the final outputs.",
        "3 engines built",
    )


def test_a_region_says_that_it_is_one():
    region = (NodeName("a"), NodeName("b"))
    nodes = (node("b", "born", region=region),)
    assert "one of these 2 nodes" in texts(comparison(nodes=nodes, first=region, path=()))


def test_no_divergence():
    report = shown(comparison(nodes=(node("a"),), first=(), path=(), outputs={}))
    assert report.title == "No divergence in 1 node that both sides have"
    assert report.passed is True


def test_errors_that_add_up():
    assert "adds up" in shown(comparison(first=(), path=())).title


def test_a_long_way_is_thinned_to_where_the_error_grows():
    nodes = [node(f"n{i}", "inherited", error=0.5, inherited=0.5) for i in range(40)]
    nodes[0] = node("n0", "born")
    nodes[20] = node("n20", "inherited", error=5, inherited=0.5)
    path = tuple(NodeName(f"n{i}") for i in range(40))
    found = comparison(nodes=tuple(nodes), first=(NodeName("n0"),), path=path)
    rows = parts(found)["On its way to the output (40 nodes)"].rows
    names = [row[0] for row in rows]
    assert len(names) == MOST_ROWS
    assert names[0] == "n0"
    assert names[-1] == "n39"
    assert "n20" in names


def test_names_cannot_repaint_the_terminal():
    evil = "\x1b[2J"
    found = comparison(first=(NodeName(evil),), nodes=(node(evil, "born"),), path=())
    assert "\x1b" not in shown(found).title + texts(found)
