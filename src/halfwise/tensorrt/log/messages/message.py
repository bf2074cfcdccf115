"""What a known message of TensorRT looks like, and what it means."""

import re
from dataclasses import dataclass, field

from halfwise.records import Severity

GUIDE = "https://docs.nvidia.com/deeplearning/tensorrt/latest/"
ISSUES = "https://github.com/NVIDIA/TensorRT/issues/"


@dataclass(frozen=True)
class Message:
    r"""A message, whichever of its wordings.

    Attributes:
        kind: Its identifier. Of "a" and "a-b", the former only announces the latter.
        severity: How bad it is.
        pattern: Found in the text of every wording. Its groups `names` (a list) and `layer` (an
            expression such as `a + b`) name nodes; the other groups fill the sentence. Lines may
            be a mebibyte long: what starts with a repetition starts at its edge (`(?<!\S)\S+`).
        sentence: What it means, with `{group}` where the message varies.
        hint: What to do about it.
        source: Address of what this rests on.
    """

    kind: str
    severity: Severity
    pattern: str
    sentence: str
    hint: str
    source: str
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern, once."""
        object.__setattr__(self, "compiled", re.compile(self.pattern))

    def words(self, found: re.Match[str], op: str = "") -> str:
        """Return the sentence for one match of the pattern; `op` where it names no operator."""
        groups = {name: (text or "").strip() for name, text in found.groupdict().items()}
        if "op" in groups:
            groups["op"] = groups["op"] or op or "that a node needs"
        # Alternatives of a pattern fill different groups; the others are empty.
        return " ".join(self.sentence.format(**groups).split())
