"""Turns a traced step into one flat graph, as amp_tf sees it at run time.

Calls are inlined, and loops and branches are lowered. Then those of TensorFlow's graph optimizers
that the program has turned on run once: amp_tf's plugin is the last in each of their rounds
(meta_optimizer.cc). They prune unused nodes and turn x / 10 into x * 0.1; on another graph amp_tf
would decide otherwise. If XLA would compile a part of the step, they do not run, as at run time.

Some optimizers are left out. The remapper fuses a product with its bias and activation, where this
machine has a kernel for them: nodes to measure would be gone, and a pattern for the fused node
would not match on the next machine. (Its kernels round once less.) The memory optimizer makes an
AddN of large tensors add into a temporary variable, and a session holds one such variable for all
versions. The layout optimizer is off wherever amp_tf is on, and those that convert to 16 bit would
do amp_tf's work.

Random ops get seeds, so that all versions of a step have the same masks. A session keeps the state
of those that are not stateless, so each run has a new session.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.errors import GraphError
from amp_tf.graph.attributes import ARG_OP, USER_NAME
from amp_tf.graph.names import CAST_SUFFIX, node_of
from amp_tf.graph.protos import new_graph
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.sizes import NO_SHAPES, KnownShapes, Shapes, read_shape
from amp_tf.oplists.hardware import Hardware
from amp_tf.rewriting.pipeline import RewriteResult, rewrite

LOSS = "loss"
GRADIENT = "gradient"
RESULT = "result"
UPDATE = "update"
OWN_SCOPE = "amp_tf_compare"  #: the name scope of the nodes that are added to the step
_COMPILED = "_XlaMustCompile"
_KEPT_FUNCTIONS = (_COMPILED, "_noinline", "api_implements")  # attributes that prevent inlining
_LEFT_OUT = (  # fields of RewriterConfig
    "remapping",
    "layout_optimizer",
    "scoped_allocator_optimization",
    "use_plugin_optimizers",
    "auto_mixed_precision",
    "auto_mixed_precision_cpu",
    "auto_mixed_precision_mkl",
    "auto_mixed_precision_onednn_bfloat16",
)
_SEEDS = ("seed", "seed2")
Names = tuple[str, ...]  #: of nodes or tensors
Batch = tuple[np.ndarray, ...]  #: what to feed for each argument
_Thing = TypeVar("_Thing", bound=Hashable)


class Title(NamedTuple):
    """The kind and the name of an output, for people."""

    kind: str  #: such as :data:`LOSS`
    name: str


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable that the step reads or writes."""

    name: str  #: as its owner calls it
    value: np.ndarray  #: its current value
    data_type: int  #: its ``DataType`` number
    is_reference: bool = False  #: whether it is a reference variable of TF1's, not a resource


@dataclasses.dataclass(frozen=True)
class FlatStep:
    """One step of training or inference as a flat graph."""

    graph: Any  #: the GraphDef
    #: what to feed for its arguments, a row a batch; the loss scale is not among them
    batches: tuple[Batch, ...]
    feeds: Names  #: the placeholders of the arguments, in order
    captures: Mapping[str, np.ndarray]  #: placeholders of captured tensors, and their values
    #: placeholders of variables' handles, or the variables' nodes
    variables: Mapping[str, Variable]
    results: Names  #: names of the tensors that the step returns
    #: the title of each floating-point result, and the name of its tensor
    outputs: tuple[tuple[Title, str], ...]
    effects: Names  #: names of the nodes that must run too, such as updates of variables
    #: whether it, or parts of it, are for XLA; then it is not optimized by TensorFlow before
    is_compiled: bool
    #: whether gradients are computed from the loss times a scale, and unscaled
    is_scaled: bool = False
    shapes: Shapes = NO_SHAPES  #: the static shapes of its tensors
    #: the ``DataType`` numbers of its results, if it is a function of the program's; else empty
    returns: tuple[int, ...] = ()

    def rewritten(self, config: AmpConfig, hardware: Hardware | None) -> RewriteResult:
        """Returns the step as amp_tf rewrites it.

        A function of the program's has arguments and results, as TensorFlow passes it to
        optimizers: a result may come back as an argument of the next call, as running sums do.
        Captured tensors are not arguments.
        """
        shown = copy.deepcopy(self.graph)
        arguments = [*self.captures]
        if self.returns:
            arguments = [*self.feeds, *self.captures, *self.variables]
        numbers = {name: number for number, name in enumerate(arguments)}
        for node in shown.node:
            if node.name in numbers:
                _make(node, ARG_OP, node.attr["dtype"].type, numbers[node.name])
                if node.name in self.feeds:
                    node.attr[USER_NAME].s = node.name.encode()
        for number, (name, data_type) in enumerate(zip(self.results, self.returns, strict=False)):
            added = shown.node.add(name=f"{OWN_SCOPE}/{number}", input=[name])
            _make(added, RETVAL_OP, data_type, number)
        results = map(node_of, self.results)
        ends = [*self.feeds, *self.captures, *self.variables, *results, *self.effects]
        result = rewrite(shown, config, preserve=ends, hardware=hardware, shapes=self.shapes)
        # The arguments are the step's own again, and results are no nodes.
        nodes = [node for node in self.graph.node if node.name in numbers]
        for node in result.graph.node:
            if node.op != RETVAL_OP and node.name not in numbers:
                nodes.append(node)
        whole = result.graph
        graph = new_graph(node=nodes, library=whole.library, versions=whole.versions)
        return dataclasses.replace(result, graph=graph)


def flatten(
    function: Any,
    titles: Sequence[Title],
    batches: tuple[Batch, ...],
    *,
    is_scaled: bool,
    is_compiled: bool,
) -> FlatStep:
    """Inlines the functions that a concrete function calls.

    ``titles`` are those of its results, in order.

    A GraphError where it captures something else than variables and tensors, such as a table, or
    was rewritten before.
    """
    captures, variables = _captured(function)
    effects = tuple(operation.name for operation in function.graph.control_outputs)
    ends = [tensor.name for tensor in (*function.inputs, *function.outputs)]
    graph = function.graph.as_graph_def()
    placeholders = _take_arguments(graph, function.inputs)
    flat, shapes, is_compiled = flatten_graph(graph, [*ends, *effects], is_compiled=is_compiled)
    for node in flat.node:
        if node.name in placeholders:
            node.CopyFrom(placeholders[node.name])
    outputs = []
    for title, tensor in zip(titles, function.outputs, strict=True):
        if tensor.dtype.is_floating:
            outputs.append((title, tensor.name))
    returns: tuple[int, ...] = ()
    if not is_scaled:
        returns = tuple(tensor.dtype.as_datatype_enum for tensor in function.outputs)
    fed = function.inputs[: len(batches[0]) + is_scaled]
    return FlatStep(
        graph=flat,
        batches=batches,
        feeds=tuple(tensor.op.name for tensor in fed),
        captures=captures,
        variables=variables,
        results=tuple(tensor.name for tensor in function.outputs),
        outputs=tuple(outputs),
        effects=effects,
        is_compiled=is_compiled,
        is_scaled=is_scaled,
        shapes=shapes,
        returns=returns,
    )


def _captured(function: Any) -> tuple[dict[str, np.ndarray], dict[str, Variable]]:
    """Returns the values of the tensors and variables that a function captures, by placeholder."""
    import tensorflow as tf

    names = {}
    for variable in function.graph.variables:
        names[id(variable.handle)] = node_of(variable.name)
    captures: dict[str, np.ndarray] = {}
    variables: dict[str, Variable] = {}
    for outer, inner in function.graph.captures:
        node = inner.op.name
        if inner.op.type == "Const":  # small tensors are written into the graph
            continue
        if outer.dtype not in (tf.resource, tf.variant):
            captures[node] = outer.numpy()
            continue
        dtype = _type_of(outer)
        if dtype is None:
            raise GraphError(
                f"the step captures {node!r} ({outer.dtype.name}), which is neither a variable "
                "nor a tensor",
                where="compare(model_or_function)",
                fix="Pass a function without lookup tables and iterators: look up before, and "
                "feed what they give",
            )
        # A copy on a CPU: TensorFlow writes to new memory if a variable's value is referenced
        # elsewhere.
        value = np.asarray(tf.raw_ops.ReadVariableOp(resource=outer, dtype=dtype))
        # A variable that is never read is not among the graph's variables.
        said = re.search(r'name="(.*?)(/\d+)?"', str(outer))
        name = names.get(id(outer)) or (said[1] if said else node)
        variables[node] = Variable(name, value, dtype.as_datatype_enum)
    return captures, variables


def flatten_graph(
    graph: Any, ends: list[str], options: Any = None, *, is_compiled: bool = False
) -> tuple[Any, Shapes, bool]:
    """Inlines the functions that a GraphDef calls, and optimizes it.

    Its random ops get seeds. The GraphDef that is given is changed.

    Args:
        graph: the GraphDef.
        ends: the nodes and tensors that are wanted.
        options: the RewriterConfig in force; by default that of TensorFlow 2's functions.
        is_compiled: whether XLA compiles all of it.

    Returns:
        The graph, the static shapes of its tensors, and whether XLA would have compiled parts.

    Raises:
        GraphError: the graph was rewritten before.
    """
    from tensorflow.core.protobuf import rewriter_config_pb2
    from tensorflow.python.eager import context
    from tensorflow.python.grappler.item import Item

    kinds = rewriter_config_pb2.RewriterConfig
    for function in graph.library.function:
        if _COMPILED in function.attr:
            is_compiled |= function.attr[_COMPILED].b
        for name in _KEPT_FUNCTIONS:
            function.attr.pop(name, None)
    for node in every_node(graph):
        node.attr.pop(_COMPILED, None)
    flat = _optimized(graph, ends, kinds(min_graph_nodes=-1, optimizers=["function"]))
    if any(node.name.endswith(CAST_SUFFIX) for node in flat.node):
        raise GraphError(
            "functions of the step are in 16 bit already, as those of a model that amp_tf "
            "converted",
            where="compare(model_or_function)",
            fix="Compare the model that was converted",
        )
    if options is None:
        options = context.context().config.graph_options.rewrite_options
    if not (is_compiled or options.disable_meta_optimizer):
        one_round = kinds()
        one_round.CopyFrom(options)
        one_round.min_graph_nodes = -1  # small graphs too
        one_round.meta_optimizer_iterations = kinds.ONE
        for name in _LEFT_OUT:
            setattr(one_round, name, kinds.OFF)
        one_round.memory_optimization = kinds.NO_MEM_OPT
        flat = _optimized(flat, ends, one_round)
    # Plugins get such shapes from Grappler; attributes with shapes do not survive its passes.
    inferred = Item(_meta_graph_of(flat, ends)).GetOpProperties()
    shapes = {}
    for name, ports in inferred.items():
        shapes[name] = [read_shape(port.shape) for port in ports]
    for number, node in enumerate(flat.node, 1):  # random ops that would choose seeds of their own
        if _is_seeded(node) and not any(node.attr[name].i for name in _SEEDS):
            node.attr[_SEEDS[0]].i = number
    return flat, KnownShapes(shapes), is_compiled


def _optimized(graph: Any, ends: list[str], options: Any) -> Any:
    """Runs TensorFlow's graph optimizers on a GraphDef."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.grappler import (
        tf_optimizer,
    )  # for which TensorFlow has no public interface

    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.CopyFrom(options)
    return tf_optimizer.OptimizeGraph(config, _meta_graph_of(graph, ends), verbose=False)


def _meta_graph_of(graph: Any, ends: list[str]) -> Any:
    """Returns the MetaGraphDef of a graph, with its outputs named as Grappler expects."""
    from tensorflow.core.protobuf import meta_graph_pb2

    meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    meta_graph.collection_def["train_op"].node_list.value.extend(ends)
    return meta_graph


def _type_of(handle: Any) -> Any:
    """Returns the ``tf.DType`` of the variable that a handle is for.

    It is ``None`` for another thing, such as a table.
    """
    import tensorflow as tf

    data = getattr(handle, "_handle_data", None)
    if data is None or not data.shape_and_type:
        return None
    return tf.as_dtype(data.shape_and_type[0].dtype)


def _take_arguments(graph: Any, inputs: Any) -> dict[str, Any]:
    """Replaces a function's placeholders by ops whose shapes Grappler believes.

    Grappler takes placeholders as fed, and so believes no shape of them. Returns them by name.
    """
    from tensorflow.python.ops.handle_data_util import get_resource_handle_data

    nodes = {node.name: node for node in graph.node}
    placeholders = {}
    for tensor in inputs:
        node = nodes[tensor.op.name]
        placeholders[node.name] = copy.deepcopy(node)
        handle = get_resource_handle_data(tensor) if tensor.dtype.name == "resource" else None
        if handle is not None:
            _make(node, ARG_OP, tensor.dtype.as_datatype_enum, 0)
            for held in handle.shape_and_type:
                node.attr["_handle_dtypes"].list.type.append(held.dtype)
                node.attr["_handle_shapes"].list.shape.add().CopyFrom(held.shape)
        else:
            node.op = "InfeedDequeue"
            node.attr.clear()
            node.attr["dtype"].type = tensor.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
    return placeholders


def _make(node: Any, op: str, data_type: int, number: int) -> None:
    """Turns a node into an argument or a result of a function."""
    node.op = op
    node.attr.clear()
    node.attr["T"].type = data_type
    node.attr["index"].i = number


def keeps_state(graph: Any) -> bool:
    """Tells whether a session keeps the state of random ops of a GraphDef or its functions."""
    return any(
        _is_seeded(node) and not node.op.startswith("Stateless") for node in every_node(graph)
    )


def with_ancestors(
    starts: Iterable[_Thing], sources: Callable[[_Thing], Iterable[_Thing]]
) -> dict[_Thing, None]:
    """Returns some things and all that they depend on, directly or not.

    Args:
        starts: the things.
        sources: returns what a thing depends on directly.
    """
    found = dict.fromkeys(starts)
    waiting = list(found)
    while waiting:
        for source in sources(waiting.pop()):
            if source not in found:
                found[source] = None
                waiting.append(source)
    return found


def every_node(graph: Any) -> Iterator[Any]:
    """Yields the nodes of a GraphDef and of its functions."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _is_seeded(node: Any) -> bool:
    return all(name in node.attr for name in _SEEDS)
