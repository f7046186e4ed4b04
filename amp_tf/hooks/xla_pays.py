"""What ``auto`` makes of the measured figures of XLA:CPU: ops that do not pay stay in float32, and the report says so.

A precision that the user names, and ``ignore_performance``, convert them all the same.
"""

from __future__ import annotations

import dataclasses

from amp_tf.config import AmpConfig
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import CPU_DEVICE, resolve_target
from amp_tf.oplists.xla_cpu import UNPROFITABLE
from amp_tf.painting.painting import Painting
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.reporting.schema import GraphReport

DOES_NOT_PAY = Reason(
    Rule.DOES_NOT_PAY,
    detail="on XLA:CPU, which widens bfloat16 operands to float32; AMP_TF_PRECISION=bfloat16 converts all the same",
)


def is_weighed(config: AmpConfig, hardware: Hardware) -> bool:
    """Whether the figures decide: the user left the choice to amp_tf, and the choice is the CPU."""
    if config.precision != "auto" or config.ignore_performance:
        return False
    target = resolve_target(config, hardware).target
    return target is not None and target.device_type == CPU_DEVICE


def without_unprofitable(config: AmpConfig) -> AmpConfig:
    """The configuration with the ops that do not pay taken off the allow list, unless the user put them there."""
    ops = sorted(UNPROFITABLE.difference(config.allow_add))
    return dataclasses.replace(config, allow_remove=(*config.allow_remove, *ops))


def explained(report: GraphReport) -> GraphReport:
    """A report made under :func:`without_unprofitable` with the true reason: the ops are on no list because of it."""
    fields = {field.name: getattr(report.painting, field.name) for field in dataclasses.fields(Painting)}
    is_idle = report.why_nothing is not None and not UNPROFITABLE.isdisjoint(report.painting.view.ops)
    return dataclasses.replace(
        report,
        painting=_WeighedPainting(**fields),
        why_nothing=DOES_NOT_PAY if is_idle else report.why_nothing,
    )


@dataclasses.dataclass(frozen=True)
class _WeighedPainting(Painting):
    """A painting for which ops were taken off the allow list because they do not pay."""

    def reason(self, node: int) -> Reason:
        reason = super().reason(node)
        if reason.rule is Rule.NOT_LISTED and self.view.ops[node] in UNPROFITABLE:
            return DOES_NOT_PAY
        return reason
