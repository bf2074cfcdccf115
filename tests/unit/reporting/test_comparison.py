from halfwise.records import NodeName, Step
from halfwise.reporting.diagnosis import comparison as shown
from halfwise.reporting.parts import Table
from halfwise.wording import MOST_ROWS
from tests.unit.reporting.comparisons import comparison, node

NODES = "Nodes on the way of the error, and others where errors start"


def parts(found):
    return {part.title: part for part in shown(found).parts}


def texts(found):
    return " ".join(
        " ".join(" ".join(row) for row in part.rows)
        if isinstance(part, Table)
        else " ".join(part.lines)
        for part in shown(found).parts
    )


def test_what_passed_and_where_rows_are():
    assert shown(comparison()).passed is False
    found = parts(comparison())
    assert [row[2] for row in found["Outputs"].shown] == ["off", "good"]
    tables = [part for part in found.values() if isinstance(part, Table)]
    assert [[row[0] for row in table.shown] for table in tables[1:]] == [["b", "c", "d"]]
    assert shown(comparison(nodes=(node("a"),), first=(), path=(), outputs={})).passed is True


def test_every_node_has_one_row():
    path = tuple(map(NodeName, "bcd"))
    found = parts(comparison(path=path, amplified=path[:2]))
    assert [row[0] for row in found[NODES].rows] == ["b", "c", "d"]


def test_what_is_cut_says_how_many_more_there_are():
    others = tuple(node(f"o{i}", "born") for i in range(MOST_ROWS + 3))
    outputs = {f"y{i}": 1.0 for i in range(MOST_ROWS + 1)}
    found = parts(comparison(nodes=(*comparison().nodes, *others), outputs=outputs))
    assert found[NODES].shown[-1][0] == "and 6 more"
    assert found["Outputs"].shown[-1] == ("and 1 more", "", "")
    assert len(found["Outputs"].shown) == MOST_ROWS + 1


def test_the_end_of_a_long_way_is_counted():
    nodes = [node(f"n{i}", "inherited", error=0.5, inherited=0.5) for i in range(40)]
    nodes[0] = node("n0", "born")
    path = tuple(NodeName(f"n{i}") for i in range(40))
    found = comparison(nodes=tuple(nodes), first=(NodeName("n0"),), path=path)
    table = parts(found)[NODES]
    assert [row[0] for row in table.rows] == [*path]
    assert table.shown[-1][0] == "and 28 more"


def test_names_cannot_repaint_the_terminal():
    evil = "\x1b[2J"
    found = comparison(first=(NodeName(evil),), nodes=(node(evil, "born"),), path=())
    assert "\x1b" not in shown(found).title + texts(found)


def test_what_to_do_next_is_a_command():
    step = Step(kind="fix", command=("halfwise", "fix", "a b.onnx"))
    told = parts(comparison(next_step=(step,)))["Next"].lines
    assert told[0].endswith("fix 'a b.onnx'")
