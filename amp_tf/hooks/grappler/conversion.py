"""One graph of the running program: parse, rewrite, record, serialize."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from tensorflow.core.framework.graph_pb2 import GraphDef

from amp_tf.config import AmpConfig
from amp_tf.errors import GraphError
from amp_tf.hooks import devices, evidence
from amp_tf.reporting import process
from amp_tf.rewriting import pipeline

# Attributes by which TensorFlow marks calls of XLA-compiled functions (tensorflow/compiler/jit/defs.h).
_XLA_MARKS = (b"_XlaMustCompile", b"_XlaRun")


def convert(serialized: bytes, preserve: frozenset[str], config: AmpConfig) -> bytes | None:
    """Rewrites one graph that TensorFlow is about to run.

    Library functions stay as they are: TensorFlow hands over the body of each one that it runs by itself.

    Args:
        serialized: a serialized GraphDef.
        preserve: names of nodes that stay as they are.
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
    result = pipeline.rewrite(graph, config, preserve=tuple(preserve), hardware=devices.hardware(), functions=False)
    process.record(result.report, way="grappler")
    if not result.changed and any(mark in serialized for mark in _XLA_MARKS):
        evidence.count(xla_graphs=1)
    return result.graph.SerializeToString() if result.changed else None
