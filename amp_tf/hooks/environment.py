"""Follows changes that the program makes to amp_tf's variables, before or after it imports TensorFlow.

NVIDIA's TensorFlow read ``TF_ENABLE_AUTO_MIXED_PRECISION`` each time it optimized a graph, so most scripts of that time
set it themselves, by ``os.environ[…] = "1"`` at the top or where they read an ``--amp`` flag; notebooks have no other
way. A value set before TensorFlow is imported is found in the environment; later changes are reported by
``_amp_tf_start``, which wraps the methods of ``os.environ`` that change it.

A change by ``os.putenv`` alone is not seen. For the same reason the finder of ``_amp_tf_start`` is installed even
without the switch; if the package behind it is gone (an editable install whose checkout moved), TensorFlow is imported
without amp_tf. With ``AMP_TF_DISABLE=1`` at the start nothing is installed.
"""

from __future__ import annotations

import sys

import _amp_tf_start
from amp_tf.config import ENV_VARS
from amp_tf.hooks import switch

_NAMES = frozenset(row.name for row in ENV_VARS)


def follow() -> None:
    """Applies what the environment says, now and whenever the program changes it. Idempotent.

    What :func:`amp_tf.enable` turned on is left alone.
    """
    switch.obey_environment()
    _amp_tf_start.follow(_on_change)


def _on_change(name: str) -> None:
    """Applies a change of one variable. Never raises, because the variable is set in any case."""
    if name in _NAMES:
        try:
            switch.obey_environment(name)
        except Exception as error:
            print(f"amp_tf: {name} was not followed: {type(error).__name__}: {error}", file=sys.stderr)
