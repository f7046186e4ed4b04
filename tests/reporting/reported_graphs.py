"""Real graphs with shapes, rewritten so that their report has figures."""

from __future__ import annotations

import pytest
import tensorflow as tf

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.reporting import reports
from amp_tf.reporting.reports import RewriteReport

BF16_CPU = Hardware(cpu_has_bf16=True)


def traced(function, *shapes, dtype=tf.float32):
    """The GraphDef of a function, with its shapes."""
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    return tf.function(function).get_concrete_function(*specs).graph.as_graph_def(add_shapes=True)


def reported(graph, *, hardware=BF16_CPU, preserve=(), **settings) -> RewriteReport:
    """The report of a rewrite, with figures."""
    settings.setdefault("precision", "bfloat16")
    config = amp_tf.AmpConfig(report_path="-", **settings)
    return amp_tf.rewrite(graph, config, hardware=hardware, preserve=preserve).report


def use_own_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the report of the process one of the test's own."""
    own = reports.Ledger()
    for name in ("record", "of_process", "totals", "reset"):
        monkeypatch.setattr(reports, name, getattr(own, name))
