"""What is declared is what holds."""

from typing import get_args

from msgspec.structs import fields

from halfwise.case import Runtime, Settings
from halfwise.declarations import Options, default
from halfwise.declarations.option import option, shell_type
from halfwise.emulation.budget import REPEATING_SECONDS
from halfwise.formats import LOW_FORMATS
from halfwise.metrics import DEFAULT_REL_MAX, default_drop
from halfwise.options.options import Data, understand
from halfwise.records import Criterion


def words(name):
    return get_args(shell_type(Options.__annotations__[name]))


def test_formats_are_those_that_there_are():
    assert words("to") == (*LOW_FORMATS, "int8")
    assert words("io") == ("fp32", *LOW_FORMATS)


def test_what_is_not_given_is_as_declared():
    request = understand("x.npz", {})
    for made in (request.settings, request.settings.runtime, request.data):
        for field in fields(type(made)):
            if field.name in Options.__annotations__ and default(field.name) is not None:
                assert getattr(made, field.name) == default(field.name)
    assert {f.name for f in fields(Settings)} >= {"headroom", "margin", "time_budget", "io"}
    assert {f.name for f in fields(Data)} >= {"labels", "heldout_labels"}
    assert {f.name for f in fields(Runtime)} >= {"device"}
    assert request.settings.fmt.name == default("to")
    assert Criterion().agreement == default("agreement")
    assert default("rel_max") == DEFAULT_REL_MAX


def test_numbers_that_help_texts_tell_themselves():
    drops = [
        default_drop(name, labelled=labels)
        for name, labels in (
            ("top1", False),
            ("detection-f1", False),
            ("epe", False),
            ("psnr", True),
            ("psnr", False),
        )
    ]
    assert [drop and drop.drop for drop in drops] == [0.01, 0.01, 0.1, 0.1, 60]
    text = option(Options.__annotations__["metric_drop"]).help
    assert (
        "0.01 for rates such as top1 and detection-f1, 0.1 for epe and psnr, 60 for psnr without "
        "labels (down to 40 dB)" in text
    )
    assert (
        f"; {REPEATING_SECONDS:g} for models" in option(Options.__annotations__["run_timeout"]).help
    )
