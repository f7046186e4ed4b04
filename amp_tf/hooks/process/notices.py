"""Warnings to the user of the host program: each at most once, all through absl logging.

A hook that cannot do its work says so in one line and leaves the program alone. The line says what, where and what to
do, like an :class:`amp_tf.errors.AmpError`.
"""

from __future__ import annotations

import logging
import threading

from amp_tf.errors import AmpError

_lock = threading.Lock()
_said: set[str] = set()


def warn_once(key: str, what: str, *, where: str, fix: str) -> bool:
    """Prints one warning, if none was printed yet under the same key in this process.

    Args:
        key: names the kind of trouble, such as ``"grappler.failed"``.
        what: what is wrong, a sentence without its full stop.
        where: the place.
        fix: what the user can do, a sentence without its full stop.

    Returns:
        Whether the warning was printed now.
    """
    with _lock:
        if key in _said:
            return False
        _said.add(key)
    emit(logging.WARNING, f"{where}: {what}. {fix}.")
    return True


def warn_of_error(key: str, what: str, error: Exception, *, where: str, fix: str) -> bool:
    """Warns once, as :func:`warn_once`, of an error that the program outlives; what it says stands behind ``what``."""
    why = str(error).rstrip(".") if isinstance(error, AmpError) else f"{type(error).__name__}: {error}".rstrip(".")
    return warn_once(key, f"{what} ({why})", where=where, fix=fix)


def suppress(key: str) -> None:
    """Prevents the warning with this key from being printed in this process."""
    with _lock:
        _said.add(key)


def was_said(key: str) -> bool:
    """Whether the warning with this key was printed."""
    return key in _said


def emit(level: int, text: str) -> None:
    """Prints one line ``amp_tf: …`` through absl's logger, unless the user asked for errors only.

    absl hides INFO by default, which would hide the one line that says what amp_tf did; so the line keeps its level and
    is held back only where a warning would be.

    Args:
        level: a level of the :mod:`logging` module.
        text: the line, without its prefix.
    """
    from absl import logging as absl_logging

    if absl_logging.get_verbosity() < absl_logging.WARNING:
        return
    logger = absl_logging.get_absl_logger()
    # The number and function are those of the caller of the record, which no reader needs.
    record = logger.makeRecord(logger.name, level, __file__, 0, f"amp_tf: {text}", (), None, "amp_tf")
    if logger.hasHandlers():
        logger.handle(record)
    elif logger.filter(record):
        # As absl's own functions would print it, without their call of logging.basicConfig: after that, the program's
        # own call, with its file and its format, would do nothing.
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
        handler.handle(record)


def forget() -> None:
    """Lets every warning be printed again. Tests need it."""
    with _lock:
        _said.clear()
