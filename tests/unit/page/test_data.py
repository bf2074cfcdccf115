import json
from math import inf, isnan, nan

from hypothesis import given
from hypothesis import strategies as st

from halfwise.page.sections import script_json

texts = st.text() | st.sampled_from(
    ["</script><script>", "<!--<script>", "\u2028", "\u202e", "&lt;"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=8,
)


@given(values)
def test_that_text_ends_no_tag_and_comes_back(value) -> None:
    written = script_json(value)
    assert written.isascii()
    assert not set(written) & set("<>&")
    assert json.loads(written) == value


@given(st.floats())
def test_that_a_number_keeps_seven_digits(value: float) -> None:
    back = float(json.loads(script_json(value)))
    assert isnan(back) if isnan(value) else back == float(f"{value:.7g}")


def test_that_what_json_lacks_is_what_number_takes() -> None:
    assert script_json((nan, inf, -inf, None)) == '["NaN","Infinity","-Infinity",null]'
