"""Handles misspelt op names in a running program: one warning, and the program goes on without them."""

from __future__ import annotations

from amp_tf.config import AmpConfig
from amp_tf.hooks.process import notices
from amp_tf.oplists import op_names


def known_only(config: AmpConfig) -> AmpConfig:
    """The configuration without the op names that TensorFlow does not know now; each gets one warning.

    Called for each graph, so that ops of a library that the program loads later count from then on.
    """
    unknown = op_names.find_unknown(config)
    for entry in unknown:
        notices.warn_once(
            f"op_name.{entry.field}.{entry.op}",
            f"{entry.what}, so the name is left out",
            where=entry.where,
            fix=f"{entry.guess}An op of a library of your own counts from the first graph after it was loaded",
        )
    return op_names.without(config, unknown)
