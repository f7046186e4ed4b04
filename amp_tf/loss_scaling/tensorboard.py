"""Scalars for TensorBoard: loss scale, skipped steps, and how much of the work is in 16 bit."""

from __future__ import annotations

from typing import Any

from amp_tf.loss_scaling.diagnosis import Status
from amp_tf.reporting import process
from amp_tf.reporting.files import PREFIX


class Board:
    """Writes event files; the first is created with the first scalar.

    Args:
        log_dir: TensorBoard's folder.
    """

    def __init__(self, log_dir: str) -> None:
        self._log_dir = log_dir
        self._writer: Any = None
        self._last_step = -1

    def write(self, step: int, status: Status | None) -> None:
        """Writes the current values, once for each step.

        ``amp_tf/products_in_16_bit`` is there where the sizes of products are known; ``amp_tf/nodes_in_16_bit`` always
        is.

        Args:
            step: the x axis.
            status: of the loss scale; ``None`` where there is none.
        """
        import tensorflow as tf

        if step == self._last_step:
            return
        self._last_step = step
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._log_dir)
        with self._writer.as_default(), tf.summary.record_if(True):
            for name, value in self._scalars(status).items():
                tf.summary.scalar(f"{PREFIX}{name}", value, step=step)

    def flush(self) -> None:
        """Flushes the event files."""
        if self._writer is not None:
            self._writer.flush()

    def _scalars(self, status: Status | None) -> dict[str, float]:
        totals = process.totals()
        scalars = {"nodes_in_16_bit": totals.converted / totals.total} if totals.total else {}
        if status is not None:
            scalars |= {"loss_scale": status.scale, "skipped_steps": float(status.skipped)}
        share = totals.products.share
        return scalars if share is None else {**scalars, "products_in_16_bit": share}
