"""A step as one function that XLA compiles, as it is where the program runs it.

XLA computes other numbers than TensorFlow's kernels: it leaves out a rounding to 16 bit where what follows is float32
again, and on CPUs computes 16-bit sums in float32. What it gives in 16 bit is compared with what it gives in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def import_compiled(graph: Any, inputs: Sequence[str], results: Sequence[str], effects: Sequence[str]) -> list[Any]:
    """Imports a GraphDef into the present graph; all but its inputs becomes one call.

    Args:
        graph: the GraphDef.
        inputs: names of its placeholders and variables' handles, which keep their names.
        results: names of the tensors that are wanted.
        effects: names of further nodes that must run.

    Returns:
        The tensors that are wanted. XLA compiles the call as it runs; what it cannot compile is an error then.
    """
    import tensorflow as tf

    parts = [tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library) for _ in range(2)]
    outer, needless = frozenset(inputs), {f"^{name}" for name in inputs}
    for node in graph.node:
        added = parts[node.name in outer].node.add()
        added.CopyFrom(node)
        added.input[:] = [text for text in node.input if text not in needless]
    body, outside = parts
    names = [f"{name}:0" for name in inputs]
    given = tf.import_graph_def(outside, return_elements=names, name="")
    computed = [name for name in results if name not in names]

    def step(*arguments: Any) -> list[Any]:
        of_name = dict(zip(names, arguments, strict=True))
        found = tf.import_graph_def(body, of_name, [*computed, *effects], name="")
        of_name |= zip(computed, found, strict=False)
        with tf.control_dependencies(found[len(computed) :]):
            return [tf.identity(of_name[name]) for name in results]

    return list(tf.function(step, jit_compile=True, autograph=False)(*given))
