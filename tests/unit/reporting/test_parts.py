from halfwise.reporting.parts import Column, Table


def test_columns_that_say_nothing_are_left_out():
    columns = (Column("name"), Column("figure", "right"), Column("note"))
    table = Table("T", columns, (("a", "", "x"), ("b", "", "")))
    assert table.without_empty_columns() == Table(
        "T", (columns[0], columns[2]), (("a", "x"), ("b", ""))
    )
