"""Scalars for TensorBoard: loss scale, skipped steps, and how much of the work is in 16 bit.

They are written by ``tf.summary.write``: ``tf.summary.scalar`` is TensorBoard's, which need not be installed here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from absl import logging

from amp_tf.loss_scaling.diagnosis import Status
from amp_tf.reporting import process
from amp_tf.reporting.files import PREFIX

_FRAME = re.compile(r"\{\{.*?\}\}| \[Op:.*")  # what TensorFlow puts around the message of an op


class Board:
    """Writes event files; the first is created with the first scalar. What cannot be written is warned about once.

    Args:
        log_dir: TensorBoard's folder.
    """

    def __init__(self, log_dir: str) -> None:
        self._log_dir = log_dir
        self._writer: Any = None
        self._is_off = False
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
        from tensorflow.core.framework.summary_pb2 import SummaryMetadata

        if step == self._last_step or self._is_off:
            return
        self._last_step = step
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
        with self._surviving():
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(self._log_dir)
            with self._writer.as_default(), tf.summary.record_if(True):
                for name, value in self._scalars(status).items():
                    tf.summary.write(f"{PREFIX}{name}", tf.constant(value), step, metadata)

    def flush(self) -> None:
        """Flushes the event files."""
        if self._writer is not None and not self._is_off:
            with self._surviving():
                self._writer.flush()

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """Turns an error of the file system into one warning, after which nothing is written any more."""
        import tensorflow as tf

        try:
            yield
        except tf.errors.OpError as error:
            self._is_off = True
            why = _FRAME.sub("", error.message).strip().rstrip(".")
            logging.warning(
                "amp_tf: LossScaleMonitor.log_dir: %s is not written (%s). Training goes on.", self._log_dir, why
            )

    def _scalars(self, status: Status | None) -> dict[str, float]:
        totals = process.totals()
        scalars = {"nodes_in_16_bit": totals.converted / totals.total} if totals.total else {}
        if status is not None:
            scalars |= {"loss_scale": status.scale, "skipped_steps": float(status.skipped)}
        share = totals.products.share
        return scalars if share is None else {**scalars, "products_in_16_bit": share}
