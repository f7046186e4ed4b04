"""Finds out whether TensorFlow's own graph optimizers fail on this program's functions.

Where one of them does, TensorFlow runs the function unchanged and asks no plugin, so it never reaches amp_tf; only
TensorFlow's own log says so. So if amp_tf has seen no products, functions that hold some are given to the same
optimizers once more, without plugins, and their error is reported.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

from amp_tf.graph.templates import referenced
from amp_tf.oplists.table import ALLOW, ROWS

_PRODUCTS = frozenset(row.op for row in ROWS if row.op_list == ALLOW)
_MOST_FUNCTIONS, _MOST_NODES, _MOST_SECONDS = 8, 5000, 2.0  # limits, because the user's program is about to end


@functools.cache
def find() -> str:
    """The error of TensorFlow's optimizers on a function of this program; empty where they fail on none. Cached."""
    from tensorflow.python.eager import context

    running = context.context_safe()
    if running is None or not running._initialized:
        return ""
    known = {name: running.get_function_def(name) for name in running.list_function_names()}
    small = [d for d in known.values() if len(d.node_def) <= _MOST_NODES]
    with_products = [d for d in small if any(node.op in _PRODUCTS for node in d.node_def)]
    until = time.monotonic() + _MOST_SECONDS
    for definition in sorted(with_products, key=lambda d: len(d.node_def), reverse=True)[:_MOST_FUNCTIONS]:
        if (failure := _failure(definition, known)) or time.monotonic() > until:
            return failure
    return ""


def _failure(definition: Any, known: dict[str, Any]) -> str:
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
    from tensorflow.python.framework import errors_impl, function_def_to_graph
    from tensorflow.python.grappler import tf_optimizer

    meta_graph = meta_graph_pb2.MetaGraphDef()
    try:
        graph = function_def_to_graph.function_def_to_graph_def(definition)[0]
    except Exception:  # some functions sent to a server cannot be read back
        return ""
    graph.library.function.extend(_missing(graph, definition, known))
    for node in graph.node:
        if node.op == "Placeholder":  # a placeholder of a resource has no shape, and could not be read
            node.attr["shape"].shape.unknown_rank = True
    meta_graph.graph_def.CopyFrom(graph)
    ends = [tensor.partition(":")[0] for tensor in definition.ret.values()] or [graph.node[-1].name]
    meta_graph.collection_def["train_op"].node_list.value.extend(ends)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.use_plugin_optimizers = rewriter_config_pb2.RewriterConfig.OFF
    try:
        tf_optimizer.OptimizeGraph(config, meta_graph)
    except errors_impl.OpError as error:
        return str(error.message).partition("\n")[0]
    except Exception:  # it cannot be read, or there is no device to optimize for: that says nothing
        pass
    return ""


def _missing(graph: Any, definition: Any, known: dict[str, Any]) -> Iterator[Any]:
    """The functions that a function calls and that its graph does not contain yet."""
    seen = {function.signature.name for function in graph.library.function}
    waiting = [definition]
    while waiting:
        for node in waiting.pop().node_def:
            for name in referenced(node):
                if name in known and name not in seen:
                    seen.add(name)
                    waiting.append(known[name])
                    yield known[name]
