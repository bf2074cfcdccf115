from halfwise.records import NodeName, Step
from halfwise.reporting.diagnosis import comparison as shown
from halfwise.reporting.parts import Table
from halfwise.wording import MOST_ROWS
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
    assert found["Where it starts"].lines[0].startswith("B, given the same inputs, is off by inf")
    assert [row[2] for row in found["Outputs"].shown] == ["off", "good"]
    assert [row[0] for row in found["Path of the error to the output (2 nodes)"].shown] == [
        "b",
        "c",
    ]
    assert [row[0] for row in found["Errors start elsewhere too (1 node)"].shown] == ["d"]
    assert found["About this comparison"].lines == (
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


AMPLIFIED = node("m", "amplified", error=0.007, inherited=0.001, factor=7.0)


def test_what_is_amplified_first_is_named_first():
    nodes = (AMPLIFIED, *comparison().nodes)
    amplified = (NodeName("m"), NodeName("a"))
    report = shown(comparison(nodes=nodes, amplified=amplified))
    assert report.title.startswith("First divergence: m, where an error is amplified; the first")
    assert report.title.endswith("starts: b")
    assert [part.title for part in report.parts][:3] == [
        "Where it is amplified",
        "Path of the error from there (2 nodes)",
        "Where it starts",
    ]
    found = texts(comparison(nodes=nodes, amplified=amplified))
    assert "off by at most 0.001; the error grows to 7 × that" in found
    alone = shown(comparison(nodes=nodes, amplified=amplified, first=(), path=()))
    assert alone.title.endswith("where an error is amplified; it starts at no single node")


def test_roundings_that_grow_have_no_factor():
    nodes = (AMPLIFIED.model_copy(update={"factor": None, "inherited": 0.0}), *comparison().nodes)
    assert "rounding errors grow" in texts(comparison(nodes=nodes, amplified=(NodeName("m"),)))


def test_what_is_amplified_elsewhere_is_counted():
    told = texts(comparison(nodes=(*comparison().nodes, AMPLIFIED)))
    assert "1 node amplifies an error: out of tolerance, with inputs within it" in told


def test_what_is_on_the_way_is_not_born_elsewhere_too():
    path = tuple(map(NodeName, "bcd"))
    assert not any("elsewhere" in title for title in parts(comparison(path=path)))


def test_what_is_cut_says_how_many_more_there_are():
    others = tuple(node(f"o{i}", "born") for i in range(MOST_ROWS + 3))
    outputs = {f"y{i}": 1.0 for i in range(MOST_ROWS + 1)}
    found = parts(comparison(nodes=(*comparison().nodes, *others), outputs=outputs))
    assert found[f"Errors start elsewhere too ({MOST_ROWS + 4} nodes)"].shown[-1][0] == "and 4 more"
    assert found["Outputs"].shown[-1] == ("and 1 more", "", "")
    assert len(found["Outputs"].shown) == MOST_ROWS + 1


def test_a_long_way_is_thinned_to_where_the_error_grows():
    nodes = [node(f"n{i}", "inherited", error=0.5, inherited=0.5) for i in range(40)]
    nodes[0] = node("n0", "born")
    nodes[20] = node("n20", "inherited", error=5, inherited=0.5)
    # Little next to 5, but a hundred times what it was.
    nodes[30] = node("n30", "inherited", error=0.1, inherited=0.001)
    for i in range(21, 30):
        nodes[i] = node(f"n{i}", "inherited", error=500, inherited=499)
    path = tuple(NodeName(f"n{i}") for i in range(40))
    found = comparison(nodes=tuple(nodes), first=(NodeName("n0"),), path=path)
    rows = parts(found)["Path of the error to the output (12 of 40 nodes)"].rows
    names = [row[0] for row in rows]
    assert len(names) == MOST_ROWS
    assert names[0] == "n0"
    assert names[-1] == "n39"
    assert "n20" in names
    assert "n30" in names


def test_names_cannot_repaint_the_terminal():
    evil = "\x1b[2J"
    found = comparison(first=(NodeName(evil),), nodes=(node(evil, "born"),), path=())
    assert "\x1b" not in shown(found).title + texts(found)


def test_what_to_do_next_is_a_command():
    step = Step(kind="fix", command=("halfwise", "fix", "a b.onnx"))
    told = parts(comparison(next_step=(step,)))["Next"].lines
    assert told[0].endswith(": halfwise fix 'a b.onnx'")
