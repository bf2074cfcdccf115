"""How many builds may still be spent on new plans."""

from collections.abc import Callable
from dataclasses import dataclass, field

from halfwise.interruption import Interruption, interruption


@dataclass
class Budget:
    """Builds that may still be spent on new plans; after Ctrl-C none.

    Attributes:
        builds: How many are left but for that.
        over: Returns whether Ctrl-C came when an engine was proven: then nothing more is built.
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
        """Whether some are left, and Ctrl-C is why they may not be spent."""
        return self.interruption.asked and self.builds > 0

    def take(self) -> None:
        """Spend one."""
        self.builds -= 1
