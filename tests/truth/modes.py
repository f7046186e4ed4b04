"""The three ways in which a program runs: in float32, as the ideal mixed program, and under amp_tf
as it comes.
"""

from __future__ import annotations

import contextlib
import dataclasses

import keras
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import CLEAR, INFER, ROWS


@dataclasses.dataclass(frozen=True)
class Mode:
    """A precision that a user may ask for.

    Attributes:
        name: the value of ``AmpConfig.precision``.
        ideal: the precision of the ideal program; ``auto`` is judged by bfloat16's, of which it
            converts a part.
        unit: the unit roundoff of the 16-bit type: the most that one rounding changes a value,
            relatively.
    """

    name: str
    ideal: str
    unit: float


MODES = {
    "bfloat16": Mode("bfloat16", "bfloat16", 2.0**-8),
    "float16": Mode("float16", "float16", 2.0**-11),
    "auto": Mode("auto", "bfloat16", 2.0**-8),
}
_CPU = Hardware.detect_cpu()
#: Whether TensorFlow multiplies bfloat16 on this CPU. On others float32 computes the products of
#: bfloat16, and ``auto`` converts nothing.
MULTIPLIES_BF16 = _CPU.cpu_has_bf16 and _CPU.has_onednn
#: The modes that convert on this CPU.
AVAILABLE = tuple(mode for mode in MODES if mode != "auto" or MULTIPLIES_BF16)


def ideal_config(precision):
    """Products alone: what would follow them into 16 bit, or pass 16 bit on, is on no list."""
    return amp_tf.AmpConfig(
        precision=precision,
        infer_remove=tuple(sorted({row.op for row in ROWS if row.op_list == INFER})),
        clear_remove=tuple(sorted({row.op for row in ROWS if row.op_list == CLEAR})),
    )


def default_config(mode):
    """As users have it."""
    return amp_tf.AmpConfig(precision=mode.name)


@contextlib.contextmanager
def running(config):
    """Runs a block under amp_tf with a configuration, or in float32; names, seeds and layers start
    anew.
    """
    keras.backend.clear_session(
        free_memory=False
    )  # names start anew; to collect garbage takes longer than a program
    keras.utils.set_random_seed(7)
    tf.config.run_functions_eagerly(False)
    if config is None:
        amp_tf.disable()
        yield
        return
    handle = amp_tf.enable(config)
    try:
        yield
    finally:
        handle.uninstall()


def check_that_graphs_are_converted():
    """Checks that amp_tf converts a plain graph: otherwise every program would look right.

    Raises:
        RuntimeError: amp_tf converts no product of a plain graph.
    """
    before = amp_tf.report().converted
    with running(default_config(MODES["bfloat16"])):
        tf.function(tf.matmul)(tf.ones((4, 4)), tf.ones((4, 4)))
    if amp_tf.report().converted == before:
        raise RuntimeError(f"amp_tf converts nothing here: {amp_tf.report()}")
