"""A block in which graphs stay in float32: for the step that is the truth about another one.

``amp_tf.scope("float32")`` would not do: TensorFlow's remapper makes new nodes of products and what follows them, which
do not say any more in which scope they were made.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from amp_tf.config import AmpConfig
from amp_tf.hooks.grappler import plugin
from amp_tf.hooks.xla import functions

_ALL = ("",)  # a regular expression that matches every name


@contextlib.contextmanager
def in_float32(config: AmpConfig) -> Iterator[None]:
    """Converts nothing in functions that are traced and run for the first time in the block.

    This is so for all threads: what another one runs for the first time meanwhile stays in float32, too.

    Args:
        config: the settings that are in force again after the block.
    """
    kept = dataclasses.replace(config, keep_float32=_ALL)
    for hook in (plugin, functions):
        hook.install(kept)
    try:
        yield
    finally:
        for hook in (plugin, functions):
            hook.install(config)
