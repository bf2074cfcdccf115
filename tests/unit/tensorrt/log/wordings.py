"""What a line of a log is taken for."""

from halfwise.tensorrt.log.log import explain


def kind_of(line):
    """Return the kind of the only finding in a line, and what it says."""
    (finding,) = explain([line])
    assert "{" not in finding.sentence.replace("{ForeignNode", "")
    assert finding.source.startswith("https://") or finding.kind == "unknown"
    return finding.kind, finding.sentence
