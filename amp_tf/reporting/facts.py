"""What a report says of a process beside its graphs: plain data, which the hooks fill in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Curve:
    """A loss scale over time.

    Attributes:
        label: of the model or optimizer.
        scale, steps, skipped: at the end.
        points: (step, scale, skipped steps so far), in order.
    """

    label: str
    scale: float
    steps: int
    skipped: int
    points: Sequence[tuple[int, float, int]] = ()


@dataclasses.dataclass(frozen=True)
class ProcessFacts:
    """What a report says of the process it was made in.

    Attributes:
        process: program, process number, host, seconds since amp_tf began, versions.
        totals: graphs by the way they came, nodes, nodes converted, casts: those included whose graphs are not kept.
        settings: each setting in force: field, value, and where it came from.
        devices: the type of each device, and what else is known of it.
        hooks: those that failed, rewrites that failed, and why amp_tf is off.
        loss_scales: one curve for each scaler.
        steps: what steps of each kind took, as the program ran them.
    """

    process: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    totals: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Sequence[Mapping[str, Any]] = ()
    devices: Sequence[Mapping[str, Any]] = ()
    hooks: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    loss_scales: Sequence[Curve] = ()
    steps: Sequence[Mapping[str, Any]] = ()
