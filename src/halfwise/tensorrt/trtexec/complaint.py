"""What is wrong with a constraint."""

from dataclasses import dataclass

from halfwise.graph.unchecked import Place
from halfwise.records import Finding, Severity

Version = tuple[int, int]

TRTEXEC = "https://github.com/NVIDIA/TensorRT/blob/release/10.0/samples/common/sampleOptions.cpp"


@dataclass(frozen=True)
class Complaint:
    """One thing that is wrong; see `halfwise.records.Finding`."""

    rule: str
    severity: Severity
    message: str
    fix: str
    place: Place | None = None
    source: str = TRTEXEC

    def finding(self) -> Finding:
        """Return the record."""
        return Finding(
            rule=self.rule,
            severity=self.severity,
            node=self.place.name if self.place else None,
            place=self.place.number if self.place else None,
            op=self.place.op if self.place else "",
            message=self.message,
            fix=self.fix,
            source=self.source,
        )


def text_of(version: Version) -> str:
    """Return such as `8.6`."""
    return ".".join(map(str, version))
