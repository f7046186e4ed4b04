"""The settings and devices under which the program's own graphs are rewritten, where amp_tf is on.

The hooks say so here, because a monitor that the program makes must read what the program runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware


@dataclasses.dataclass(frozen=True)
class InForce:
    """Settings and devices.

    Attributes:
        config: the settings; ``None`` for those of the environment.
        find_hardware: gives the devices; called only when a graph is rewritten, because it may ask for the GPUs.
    """

    config: AmpConfig | None = None
    find_hardware: Callable[[], Hardware] = Hardware.detect_cpu


_in_force = InForce()


def current() -> InForce:
    """What is in force now; the environment's settings and the CPU where amp_tf is off."""
    return _in_force


def take(now: InForce) -> None:
    """Takes other settings and devices."""
    global _in_force
    _in_force = now
