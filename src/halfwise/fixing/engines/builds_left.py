"""How many builds are left for new plans."""

from collections.abc import Callable
from dataclasses import dataclass, field

from halfwise.interruption import Interruption, interruption


@dataclass
class Budget:
    """Builds left for new plans; none after Ctrl-C.

    Attributes:
        builds: How many are left, ignoring Ctrl-C.
        over: Returns whether Ctrl-C came after an engine was proven: then nothing more is built.
    """

    builds: int
    over: Callable[[], bool] = lambda: False
    interruption: Interruption = field(default_factory=interruption)

    @property
    def left(self) -> int:
        """How many may be spent."""
        return 0 if self.interruption.asked else self.builds

    @property
    def interrupted(self) -> bool:
        """Whether some are left that only Ctrl-C forbids to spend."""
        return self.interruption.asked and self.builds > 0

    def take(self) -> None:
        """Use one build."""
        self.builds -= 1
