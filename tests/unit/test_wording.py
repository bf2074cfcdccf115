import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.wording import (
    argument,
    capital,
    clean,
    command,
    count,
    dimensions,
    excerpt,
    fixed,
    listed,
    meant,
    number,
    percent,
    ratio,
    seconds,
    sentence,
    shorten,
    size_of,
    stopped,
    typed,
)

HIDDEN = [
    "\x1b[31m",
    "a\nb",
    "a\rb",
    "\t",
    "\x00",
    "\x9b",
    "\u202eevil",
    "\u2028",
    "\ud800",
    "\x7f",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_clean_replaces_what_is_not_plainly_visible(text):
    assert "\N{REPLACEMENT CHARACTER}" in clean(text)
    assert len(clean(text)) == len(text)


@given(st.text())
def test_cleaned_text_is_one_line_that_can_be_encoded(text):
    shown = clean(text)
    assert len(shown.splitlines()) <= 1
    assert not any(unicodedata.category(c).startswith(("C", "Zl", "Zp")) for c in shown)
    shown.encode("utf-8")


def test_clean_keeps_what_names_are_made_of():
    name = "/blocks.0/norm[1]/Pow_output_0:é 層"
    assert clean(name) == name


@given(st.text(), st.integers(3, 80))
def test_shortened_names_fit(name, width):
    assert len(shorten(name, width)) <= max(width, 0)
    if len(name) <= width:
        assert shorten(name, width) == clean(name)


def test_names_are_cut_in_the_middle():
    assert shorten("/encoder/layers.11/norm/Pow", 11) == "/…/Pow"
    assert shorten("/encoder/layers.11/norm/Pow", 22) == "/encoder/…/norm/Pow"
    assert shorten("encoder_layers_11_norm_Pow", 11) == "encod…m_Pow"


def test_of_joined_names_the_last_is_left():
    name = "model_1/flatten_1/Reshape;model_1/conv2d_1/BiasAdd"
    assert shorten(name, 40) == "…;model_1/conv2d_1/BiasAdd"
    assert shorten(name) == name
    assert shorten(name, 20) == "model_1/…/BiasAdd"
    assert len(shorten("a" * 30 + ";" + "b" * 30, 20)) == 20


def test_sentences_keep_their_words_but_not_endless_ones():
    text = sentence("node " + "x" * 5000 + " reaches 3\n")
    assert text.startswith("node xxx")
    assert "…" in text
    assert text.endswith(" reaches 3�")
    assert len(text) < 100


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (0.0015, "0.0015"),
        (4.8123, "4.81"),
        (-2.5, "−2.5"),
        (65504.0, "65504"),
        (-3.4e38, "−3.4e38"),
        (999.6, "1000"),
        (28016640.0, "2.8e7"),
        (1.234e-7, "1.23e−7"),
        (float("inf"), "inf"),
        (float("-inf"), "−inf"),
        (float("nan"), "NaN"),
    ],
)
def test_numbers(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-5.0, "-5"),
        (2.0, "2"),
        (0.05, "0.05"),
        (1e-7, "1e-7"),
        (123456789, "123456789"),
        (-1, "-1"),
    ],
)
def test_typed_numbers_are_those_of_a_command_line(value, shown):
    assert typed(value) == shown
    assert float(shown) == value


def test_fixed_numbers_take_any_value():
    assert fixed(61.34, 1) == "61.3"
    assert fixed(-3.21, 1) == "−3.2"
    assert fixed(-0.004, 2) == "0.00"
    assert fixed(float("inf"), 1) == "inf"
    assert fixed(float("nan"), 6) == "NaN"
    assert fixed(1e300, 1) == "1e300"


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.0, 2, "0 %"),
        (1.0, 2, "100 %"),
        (0.9999, 2, "99.9 %"),
        (0.99993, 4, "99.99 %"),
        (0.98734, 4, "98.73 %"),
        (1e-7, 2, "<0.01 %"),
        (0.123, 2, "12 %"),
        (2.5, 2, "250 %"),
    ],
)
def test_percentages_never_round_to_all_or_nothing(share, digits, text):
    assert percent(share, digits) == text


def test_times_and_ratios():
    assert (seconds(0.3456), seconds(300.0), seconds(12345.6)) == ("0.346 s", "300 s", "12346 s")
    assert ratio(2.9) == "2.9 ×"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1536, "1.5 KiB"),
        (1 << 20, "1 MiB"),
        (3 << 30, "3 GiB"),
        (1 << 50, "1.05e6 GiB"),
    ],
)
def test_amounts_of_any_size_can_be_written(nbytes, text):
    assert size_of(nbytes) == text
    assert size_of(10**5000).startswith("about 10^4")


def test_clauses_become_sentences():
    assert capital("the eps") == "The eps"
    assert capital("eps_1 is", ("eps_1", "")) == "eps_1 is"
    long = f"jax2tf_{'x' * 80}/dot"
    assert capital(f"{shorten(long)} is", (long,)) == f"{shorten(long)} is"
    assert capital("") == ""
    assert stopped("why.") == stopped("why") == "why."


def test_similar_words_are_asked_for() -> None:
    assert meant("metrics", ("strict", "metric", "labels"), "None.") == "Did you mean metric?"
    assert meant("top-1", ("top1", "cosine")) == "Did you mean top1?"
    assert meant("x", ("metric",), "None.") == "None."


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((), "scalar"),
        ((1, 3, None, "w", -1), "1×3×?×w×?"),
        ((7,), "7"),
        (("unk__0", "unk", 8), "?×unk×8"),
        ((0, 2), "0×2"),
        (None, "of any rank"),
    ],
)
def test_shapes_are_written_with_their_dynamic_axes(sizes, text):
    assert dimensions(sizes) == text


def test_counts():
    assert (count(1, "node"), count(0, "node")) == ("1 node", "0 nodes")


def test_names_that_differ_in_one_number_are_merged():
    names = [f"/blocks.{i}/norm{k}/Pow" for i in range(6) for k in (1, 2)]
    assert listed([*names, "/norm/Pow"]) == (
        "/blocks.{0–5}/norm1/Pow, /blocks.{0–5}/norm2/Pow, /norm/Pow"
    )


def test_gaps_in_ranges_are_told():
    assert listed([f"Pow_{i}" for i in (0, 1, 2, 5, 8, 9)]) == "Pow_{0–2, 5, 8, 9}"
    assert listed([f"Pow_{i}" for i in range(0, 100, 12)]) == "Pow_{0, 12, 24, …, 96}"


def test_what_is_not_listed_is_counted():
    assert listed(["a", "b", "c1", "c2"], most=2) == "a, b and 2 more"
    assert listed([]) == ""


@given(st.lists(st.text(alphabet="ab0123_/", max_size=12), unique=True, max_size=12))
def test_entries_stand_for_all_names(names):
    shown = listed(names, most=1)
    rest = int(shown.rsplit(" and ", 1)[1].split()[0]) if " more" in shown else 0
    assert rest < max(1, len(names))


def test_leading_zeros_and_endless_numbers_are_text():
    assert listed(["w01", "w1"]) == "w01, w1"
    assert len(listed(["9" * 5000, "8" * 5000])) < 200


def test_a_path_of_a_printed_command_is_no_option():
    assert command("halfwise", "report", Path("-x y"), "--full") == (
        "halfwise report './-x y' --full"
    )
    assert command("halfwise", "report", Path("runs/-x")) == "halfwise report runs/-x"
    assert argument("-x") == "./-x"


def test_an_excerpt_has_500_characters_at_most() -> None:
    assert excerpt("a" * 500) == "a" * 500
    assert excerpt("a" * 501) == "a" * 499 + "…"
