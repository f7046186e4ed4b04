"""Notices when the program itself sets one of amp_tf's variables, before or after it imports TensorFlow.

NVIDIA's TensorFlow read ``TF_ENABLE_AUTO_MIXED_PRECISION`` each time that it optimized a graph, so most scripts of the
time set it themselves, in a line ``os.environ[…] = "1"`` at the top or where they read their ``--amp`` flag; notebooks
have no other way. What is set before TensorFlow is imported is found in the environment; for what comes later, the two
methods of ``os.environ`` that change it are wrapped.

``os.putenv`` alone is not seen. That the finder of ``_amp_tf_start`` is there also without the switch has the same
reason; it lets TensorFlow in when the package behind it is gone (an editable install whose checkout moved).
``AMP_TF_DISABLE=1`` at the start leaves nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from amp_tf.config import ENV_VARS
from amp_tf.hooks import switch

_ENVIRON = os._Environ  # programs and tests put a plain dict in the place of os.environ, which cannot be wrapped
_NAMES = frozenset(row.name for row in ENV_VARS)
_originals: dict[str, Callable[..., Any]] = {}
_lock = threading.Lock()


def follow() -> None:
    """Does what the environment says, now and whenever the program changes what it says. Idempotent.

    What :func:`amp_tf.enable` turned on is left alone.
    """
    switch.obey_environment()
    with _lock:
        if not _originals:
            for method in ("__setitem__", "__delitem__"):
                _wrap(method)


def unfollow() -> None:
    """Takes the wrappers off ``os.environ``. Idempotent. A wrapper of somebody else around ours stays, and ours is then
    only passed through."""
    with _lock:
        for method, original in _originals.items():
            if getattr(getattr(_ENVIRON, method), "__module__", None) == __name__:
                setattr(_ENVIRON, method, original)
        _originals.clear()


def _wrap(method: str) -> None:
    original = getattr(_ENVIRON, method)

    def changed(self: Any, name: Any, *value: Any) -> None:
        original(self, name, *value)
        if self is os.environ and name in _NAMES and method in _originals:
            _on_change(name)

    changed.__name__, changed.__qualname__, changed.__doc__ = method, original.__qualname__, original.__doc__
    _originals[method] = original
    setattr(_ENVIRON, method, changed)


def _on_change(name: str) -> None:
    """Never raises: the variable is set, whatever becomes of amp_tf."""
    try:
        switch.obey_environment(name)
    except Exception as error:
        print(f"amp_tf: {name} was not followed: {type(error).__name__}: {error}", file=sys.stderr)
