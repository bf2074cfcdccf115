import re
from collections import defaultdict

import pytest

from halfwise.tensorrt.log.messages import KNOWN
from halfwise.tensorrt.log.messages.message import Message


def test_groups_of_the_alternative_that_was_found_fill_the_sentence():
    message = Message("k", "info", r"a (?P<x>\w+)|b (?P<y>\w+)", "It is {x}{y} here.", "", "")
    match = message.compiled.search("b that")
    assert match is not None
    assert message.words(match) == "It is that here."


def test_an_operator_may_be_known_from_elsewhere():
    message = Message("k", "info", r"no plugin(?: (?P<op>\w+))?", "No {op}.", "", "")
    match = message.compiled.search("no plugin")
    assert match is not None
    assert message.words(match, "If") == "No If."
    assert message.words(match) == "No that a node needs."


@pytest.mark.parametrize("message", KNOWN, ids=lambda message: message.kind)
def test_every_message_is_complete(message):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", message.kind)
    assert message.sentence.endswith(".")
    assert message.hint or message.severity == "info"
    assert message.source.startswith("https://")
    fields = set(re.findall(r"\{(\w+)\}", message.sentence))
    assert fields <= set(message.compiled.groupindex)


def test_one_kind_has_one_severity():
    severities = defaultdict(set)
    for message in KNOWN:
        severities[message.kind].add(message.severity)
    assert {kind for kind, found in severities.items() if len(found) > 1} == set()
