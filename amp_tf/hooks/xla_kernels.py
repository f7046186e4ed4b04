"""Ops that XLA compiles in float32 alone, although TensorFlow's own kernels take them in 16 bit.

XLA registers its kernels when it compiles for the first time, which is after functions are rewritten, so they cannot be
asked for. Source: XLA's kernels of the ops of the table, in TensorFlow 2.16 to 2.21; a test asks the installed one.
"""

from __future__ import annotations

import dataclasses

from amp_tf.config import AmpConfig

FLOAT32_ONLY = frozenset({"MaxPoolGradGrad", "MaxPoolGradGradV2", "MaxPool3DGradGrad"})


def without_float32_only(config: AmpConfig) -> AmpConfig:
    """The configuration with these ops taken off every list on which they could be converted."""
    ops = tuple(sorted(FLOAT32_ONLY))
    return dataclasses.replace(
        config,
        allow_remove=(*config.allow_remove, *ops),
        infer_remove=(*config.infer_remove, *ops),
        clear_remove=(*config.clear_remove, *ops),
    )
