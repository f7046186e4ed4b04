"""One graph of the running program: parse, rewrite, record, serialize."""

from __future__ import annotations

import threading

from google.protobuf.message import DecodeError
from tensorflow.core.framework.graph_pb2 import GraphDef

from amp_tf.config import AmpConfig
from amp_tf.errors import GraphError
from amp_tf.graph.sizes import Shapes
from amp_tf.hooks import devices, evidence, op_names
from amp_tf.reporting import process
from amp_tf.rewriting import pipeline

# Attributes by which TensorFlow marks calls of XLA-compiled functions (tensorflow/compiler/jit/defs.h).
_XLA_MARKS = (b"_XlaMustCompile", b"_XlaRun")


def convert(serialized: bytes, preserve: frozenset[str], shapes: Shapes, config: AmpConfig) -> bytes | None:
    """Rewrites one graph that TensorFlow is about to run.

    Library functions stay as they are: TensorFlow hands over the body of each one that it runs by itself.

    Args:
        serialized: a serialized GraphDef.
        preserve: names of nodes that stay as they are.
        shapes: the static shapes of its tensors.
        config: what to convert.

    Returns:
        The new serialized GraphDef, or ``None`` if nothing changed.

    Raises:
        GraphError: the bytes are no GraphDef, or the graph is broken.
        RewriteError: the rewrite made a graph that its own verification refuses.
    """
    try:
        graph = GraphDef.FromString(serialized)
    except DecodeError as error:
        raise GraphError(f"not a serialized GraphDef ({error})", where=f"{len(serialized)} bytes") from error
    known = op_names.known_only(config)
    result = pipeline.rewrite(
        graph, known, preserve=preserve, hardware=devices.hardware(), functions=False, shapes=shapes
    )
    if not _visits.is_second(preserve, len(graph.node), changed=result.changed):
        evidence.count(xla_graphs=int(not result.changed and any(mark in serialized for mark in _XLA_MARKS)))
        process.record(result.report, way="grappler")
    return result.graph.SerializeToString() if result.changed else None


class _Visits(threading.local):
    """Tells the second visit of a graph from the first of another, for the counts alone.

    TensorFlow runs its optimizers over each graph twice, one visit right after the other on the same thread, and does
    not say which visit it is. In between other optimizers change the graph a little, never the nodes to preserve.
    """

    preserve: frozenset[str] | None = None
    nodes = 0

    def is_second(self, preserve: frozenset[str], nodes: int, *, changed: bool) -> bool:
        if not changed and preserve == self.preserve and abs(nodes - self.nodes) <= self.nodes // 2:
            self.preserve = None  # a third visit would be the first of another graph
            return True
        self.preserve, self.nodes = preserve, nodes
        return False


_visits = _Visits()
