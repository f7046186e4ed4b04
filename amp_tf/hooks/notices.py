"""Warnings to the user of the host program: each at most once, all through absl logging.

A hook that cannot do its work says so in one line and leaves the program alone. The line says what,
where and what to do, like an :class:`amp_tf.errors.AmpError`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from amp_tf.config import DISABLE_VAR, AmpConfig, find_unknown_variables
from amp_tf.errors import AmpError
from amp_tf.hooks import state

#: what to do about an error of amp_tf itself
REPORT = f"Please report this; {DISABLE_VAR}=1 turns amp_tf off"


def warn_once(key: str, what: str, *, where: str, fix: str) -> None:
    """Prints one warning, if none was printed yet under the same key in this process.

    ``what`` says what is wrong, and ``fix`` what the user can do; both are without a full stop.
    """
    runtime = state.current()
    with runtime.lock:
        is_new = key not in runtime.warned
        runtime.warned.add(key)
    if is_new:
        emit(logging.WARNING, f"{where}: {what}. {fix}.")


def warn_of_unknown_variables() -> None:
    """Warns once of each variable that looks like one of amp_tf's and is not."""
    for name, close in find_unknown_variables():
        fix = "docs/variables.md lists the variables"
        if close:
            fix = f"Write {close}, if that is meant"
        warn_once(f"variable.{name}", "this is not a variable of amp_tf", where=name, fix=fix)


def warn_of_error(key: str, what: str, error: Exception, *, where: str, fix: str) -> None:
    """Warns once of an error that the program outlives; its words stand behind ``what``."""
    why = f"{type(error).__name__}: {error}"
    if isinstance(error, AmpError):
        why = str(error)
    warn_once(key, f"{what} ({why.rstrip('.')})", where=where, fix=fix)


@contextlib.contextmanager
def surviving(key: str, what: str, *, where: str, fix: str = REPORT) -> Iterator[None]:
    """Warns once of an error in the block, and goes on behind it."""
    try:
        yield
    except Exception as error:
        warn_of_error(key, what, error, where=where, fix=fix)


def emit(level: int, text: str) -> None:
    """Prints one line ``amp_tf: …`` through absl's logger, unless the user asked for errors only.

    absl hides INFO by default, which would hide the one line that says what amp_tf did; so the line
    keeps its level and is held back only where a warning would be.
    """
    from absl import logging as absl_logging

    if absl_logging.get_verbosity() < absl_logging.WARNING:
        return
    logger = absl_logging.get_absl_logger()
    # The number and function are those of the caller of the record, which no reader needs.
    record = logger.makeRecord(
        logger.name, level, __file__, 0, f"amp_tf: {text}", (), None, "amp_tf"
    )
    if logger.hasHandlers():
        logger.handle(record)
    elif logger.filter(record):
        # As absl's own functions would print it, without their call of logging.basicConfig: after
        # that, the program's own call, with its file and its format, would do nothing.
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
        handler.handle(record)


def known_only(config: AmpConfig) -> AmpConfig:
    """Removes the op names that TensorFlow does not know now; each gets one warning.

    Called for each graph, so that ops of a library that the program loads later count from then on.
    """
    from amp_tf.oplists import op_names

    unknown = op_names.find_unknown(config)
    for entry in unknown:
        warn_once(
            f"op_name.{entry.field}.{entry.op}",
            f"{entry.what}, so the name is left out",
            where=entry.where,
            fix=(
                f"{entry.guess}An op of a library of your own counts from the first graph after "
                "it was loaded"
            ),
        )
    return op_names.without(config, unknown)


SLOW_PRODUCTS = "precision.slow_products"  #: the key of the warning


def warn_if_slow(config: AmpConfig) -> None:
    """Warns once if float32 computes what is converted in this process."""
    from amp_tf.oplists.targets import CPU_DEVICE, resolve_target

    target = resolve_target(config, state.hardware()).target
    if target is None or target.device_type != CPU_DEVICE or not target.rounded:
        return
    name = target.precision.value
    instead = "auto, which leaves this CPU in float32"
    if state.hardware().cpu_gains:
        instead = "bfloat16, in which this CPU is fast, or auto, which converts what is faster"
    warn_once(
        SLOW_PRODUCTS,
        f"on this CPU float32 computes {name}'s matmuls and convolutions, so {name} is not faster "
        "here than float32",
        where=f"precision {name}",
        fix=f"Set AMP_TF_PRECISION={instead}",
    )
