"""Forms of operators: valid, and as described."""

from bench.forms import FORMS, c, form, x
from bench.one_node import Source, described, form_of, sound


def test_forms_written_by_hand_are_valid():
    assert len(FORMS) >= 50
    assert all(each.model() is not None for each in FORMS)


def test_an_operand_comes_from_where_it_is_said():
    sources: tuple[Source, ...] = ("input", "constant", "computed", "shape")
    for place in sources:
        model = form("ReduceSum", 13, x(2, 3), c([1], place=place)).model()
        assert model is not None
        assert described(model)["input 1"] == place
        assert sound(model) is not None


def test_a_form_is_read_back_from_its_model():
    made = form("Clip", 13, x(2, 3), None, c(4, "float32"), outputs=("used",))
    model = made.model()
    assert model is not None
    back = form_of(model)
    assert back is not None
    assert [o and o.place for o in back.operands] == ["input", None, "constant"]
    again = back.model()
    assert again is not None
    assert described(again) == described(model)
