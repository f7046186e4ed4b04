"""Converts one graph of the running program, and records it once."""

from __future__ import annotations

from amp_tf.config import AmpConfig
from amp_tf.graph.sizes import Shapes
from amp_tf.hooks.grappler import input_pipelines
from amp_tf.hooks.grappler.visits import Visits
from amp_tf.hooks.process import devices, op_names, slow_float16
from amp_tf.hooks.process import state as process_state
from amp_tf.reporting import process
from amp_tf.rewriting import pipeline

# Attributes by which TensorFlow marks calls of XLA-compiled functions (tensorflow/compiler/jit/defs.h).
_XLA_MARKS = (b"_XlaMustCompile", b"_XlaRun")


def convert(serialized: bytes, preserve: frozenset[str], shapes: Shapes, config: AmpConfig) -> bytes | None:
    """Rewrites one graph that TensorFlow is about to run.

    Library functions stay as they are: TensorFlow passes the body of each one that it runs separately.

    Args:
        serialized: a serialized GraphDef.
        preserve: names of nodes that stay as they are.
        shapes: the static shapes of its tensors.
        config: what to convert.

    Returns:
        The new serialized GraphDef, or ``None`` if nothing changed; so for the functions of input pipelines.

    Raises:
        GraphError: the bytes are not a GraphDef, or the graph is broken.
        RewriteError: the rewrite made a graph that its own verification refuses.
    """
    if input_pipelines.is_marked(serialized) or _visits.is_rewritten(serialized, preserve):
        return None
    known = op_names.known_only(config)
    result = pipeline.rewrite_serialized(
        serialized, known, hardware=devices.hardware(), preserve=preserve, functions=False, shapes=shapes
    )
    new, nodes = (result.graph if result.changed else None), result.report.total
    if new is not None:
        slow_float16.warn_if_slow(known)
    if new is not None or not _visits.is_second(preserve, nodes):
        _visits.note_first(preserve, nodes, new)
        if new is None and any(mark in serialized for mark in _XLA_MARKS):
            process_state.count_xla_graph()
        process.record(result.report, way="grappler")
    return new


_visits = Visits()
