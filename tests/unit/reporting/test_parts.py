from operator import itemgetter

from halfwise.records import replace
from halfwise.reporting.parts import Column, Table, table_of


def test_a_terminal_counts_the_rows_that_it_omits():
    columns = (Column("number", "right"), Column("name", width=5))
    rows = tuple((str(i), "longer than 5") for i in range(6))
    table = Table("T", columns, rows, most=4)
    assert table.rows == rows
    assert [row[0] for row in table.shown] == ["0", "1", "2", "3", ""]
    assert {len(row[1]) for row in table.shown[:4]} == {5}
    assert table.shown[-1] == ("", "and 2 more")
    assert replace(table, most=6).shown[-1][0] == "5"


def test_columns_that_say_nothing_are_left_out():
    columns = (Column("name"), Column("figure", "right"), Column("note"))
    rows = (("a", "", "x"), ("b", "", ""))
    table = table_of("T", rows, [(one, itemgetter(i)) for i, one in enumerate(columns)])
    assert table == Table("T", (columns[0], columns[2]), (("a", "x"), ("b", "")))
