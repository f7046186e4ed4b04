"""Traces what a user wants to compare as one step with named results, and reads the batches to feed.

Turns whatever is compared, a model, a function or runs of a session, into a step.

Turns training runs of a TF1 session into a step: its graph, what was fed, and the variables' values.

A run is cut out of the session's graph. What it was fed, and what its data sources produced, is fed again, so that each
version gets the same batches. Resource and reference variables begin with the values that they had.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig, check_config
from amp_tf.errors import ConfigError, GraphError
from amp_tf.oplists.table import REFERENCE_VARIABLES, VARIABLE_HANDLES
from amp_tf.tools.comparing.flattening import (
    GRADIENT,
    LOSS,
    OWN_SCOPE,
    RESULT,
    FlatStep,
    Step,
    Variable,
    aligned,
    flatten,
    flatten_graph,
)
from amp_tf.values import check_pattern

_WHERE = "compare(batches)"
_BATCHES = "Pass rows such as [(x, y), …], or a tf.data.Dataset"


def check_settings(config: AmpConfig | None, steps: int, nodes: str | None = None) -> AmpConfig:
    """Checks the arguments; returns the configuration, by default the environment's.

    Raises:
        ConfigError: an argument is not valid.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ConfigError(f"{steps!r} is not a number of batches", where="compare(steps=…)", fix="Write 1 or more")
    if nodes is not None:
        check_pattern(nodes, where="compare(nodes=…)")
    if config is None:
        return AmpConfig.from_env()
    return check_config(
        config, where="compare(config)", fix='Write for instance amp_tf.AmpConfig(precision="bfloat16")'
    )


def trace(subject: Any, batches: Iterable[Any], limit: int) -> tuple[Step, Any]:
    """Traces a Keras model's step, or a function.

    Args:
        subject: a Keras model (compiled: loss and gradients; else its results), a ``tf.function``, a concrete
            function, a signature of a SavedModel, or any callable.
        batches: what to call it with: for a compiled model ``(x, y)`` or ``(x, y, sample_weight)``; for others a tuple
            of arguments, a mapping of named ones, or the only argument.
        limit: how many batches are used.

    Returns:
        The step, and the concrete function; it takes flat arguments, and the loss scale last where it is scaled.

    Raises:
        ConfigError: there are no batches, or they cannot be fed.
        GraphError: the step cannot be traced with them.
    """
    import tensorflow as tf

    if not callable(subject):
        raise ConfigError(
            f"expected a Keras model or a function, got {type(subject).__name__}",
            where="compare(model_or_function)",
            fix="Of a SavedModel pass a signature: tf.saved_model.load(folder).signatures['serving_default']",
        )
    is_training = hasattr(subject, "compute_loss") and getattr(subject, "optimizer", None) is not None
    calls = [_as_call(batch, subject, is_training) for batch in itertools.islice(_rows(batches), limit)]
    if not calls:
        raise ConfigError("there are no batches", where=_WHERE, fix=_BATCHES)
    rows = tuple(_leaves(call, calls[0]) for call in calls)
    results: list[tuple[str, str]] = []
    call_of = _training_step(subject) if is_training else _plain(subject)

    def step(*leaves: Any) -> list[Any]:
        scale = leaves[len(rows[0])] if is_training else None
        arguments, named = tf.nest.pack_sequence_as(calls[0], list(leaves[: len(rows[0])]))
        found = [(kind, name, _dense(value)) for kind, name, value in call_of(arguments, named, scale)]
        results[:] = [(kind, name) for kind, name, value in found]
        return [value for _, _, value in found]

    specs = [_spec(values) for values in zip(*rows, strict=True)]
    if is_training:
        specs.append(tf.TensorSpec((), tf.float32, name="loss_scale"))
    try:
        function = tf.function(step).get_concrete_function(*specs)
    except Exception as error:  # whatever the user's code, Keras or TensorFlow raise
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().rstrip(".")
        fix = "Call it once with the first batch to see the whole error; each batch is a tuple of its arguments"
        raise GraphError(
            f"the step cannot be traced with the batches ({why})", where=name_of(subject), fix=fix
        ) from error
    floats = tuple(number for number, result in enumerate(function.outputs) if result.dtype.is_floating)
    return Step(tuple(results), floats, rows, is_training, _is_compiled(subject)), function


def _is_compiled(subject: Any) -> bool:
    """Whether XLA compiles a function, or the functions of a Keras model."""
    return bool(getattr(subject, "_jit_compile", None) or getattr(subject, "jit_compile", None))


def _rows(batches: Any) -> Iterator[Any]:
    if isinstance(batches, (str, bytes, Mapping)) or not isinstance(batches, Iterable):
        raise ConfigError(f"expected batches, got {type(batches).__name__}", where=_WHERE, fix=_BATCHES)
    return iter(batches)


def _as_call(batch: Any, subject: Any, is_training: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of one call, by position and by name."""
    if is_training:
        if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
            raise ConfigError(
                "a batch of a compiled model is (x, y) or (x, y, sample_weight)", where=_WHERE, fix=_BATCHES
            )
        return tuple(batch), {}
    if hasattr(subject, "layers") and hasattr(subject, "trainable_variables"):  # a model takes all inputs at once
        return (batch[0] if isinstance(batch, (tuple, list)) else batch,), {}
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}


def _leaves(call: Any, first: Any) -> tuple[np.ndarray, ...]:
    """The arrays of a batch; it must have the structure of the first one."""
    import tensorflow as tf

    try:
        tf.nest.assert_same_structure(first, call)
    except (TypeError, ValueError):
        raise ConfigError(
            "batches differ in structure from the first one", where=_WHERE, fix="Pass the same arguments in each batch"
        ) from None
    leaves = []
    for leaf in tf.nest.flatten(call):
        is_symbolic = isinstance(leaf, tf.Tensor) and not hasattr(leaf, "numpy")
        array = None if is_symbolic or "KerasTensor" in type(leaf).__name__ else np.asarray(leaf)
        if array is None or (array.dtype == object and not all(isinstance(item, (str, bytes)) for item in array.flat)):
            raise ConfigError(
                f"{leaf!r} has no values that can be fed", where=_WHERE, fix="Pass numpy arrays or eager tensors"
            )
        leaves.append(array.astype(np.float32) if isinstance(leaf, float) else array)
    return tuple(leaves)


def _spec(values: Sequence[np.ndarray]) -> Any:
    """What all batches have in common: dimensions that differ are left open."""
    import tensorflow as tf

    shapes = {value.shape for value in values}
    if len({len(shape) for shape in shapes}) > 1:
        return tf.TensorSpec(None, values[0].dtype)
    shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)]
    return tf.TensorSpec(shape, tf.string if values[0].dtype.kind in "OSU" else values[0].dtype)


Results = Iterable[tuple[str, str, Any]]


def _training_step(model: Any) -> Callable[..., Results]:
    """Loss, gradients and predictions of a compiled Keras model; gradients are those of the scaled loss, unscaled."""
    has_mode = getattr(model, "_call_has_training_arg", getattr(model, "_expects_training_arg", True))

    def call(arguments: Sequence[Any], _: Any, scale: Any) -> Results:
        import tensorflow as tf

        x, y, weight = (*arguments, None)[:3]
        with tf.GradientTape() as tape:
            predictions = model(x, training=True) if has_mode else model(x)
            loss = model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weight)
            scaled = loss * tf.cast(scale, loss.dtype)
        names = [getattr(variable, "path", variable.name) for variable in model.trainable_variables]
        variables = [getattr(variable, "value", variable) for variable in model.trainable_variables]
        if any(callable(variable) for variable in variables):  # tf_keras: a tf.Variable, whose value is a method
            variables = model.trainable_variables
        gradients = tape.gradient(scaled, variables)
        with tf.name_scope(OWN_SCOPE):
            unscaled = [g if g is None else _dense(g) / tf.cast(scale, g.dtype) for g in gradients]
        return [
            (LOSS, LOSS, loss),
            *((GRADIENT, name, g) for name, g in zip(names, unscaled, strict=True) if g is not None),
            *((RESULT, name or "prediction", value) for name, value in _named(predictions)),
        ]

    return call


def _plain(function: Any) -> Callable[..., Results]:
    """The results of a function, named by the structure that it returns."""
    inner = getattr(function, "python_function", function)  # without jit_compile: XLA's nodes cannot be fetched

    def call(arguments: Sequence[Any], named: Mapping[str, Any], _: Any) -> Results:
        result = inner(*arguments, **named)
        return [(RESULT, name or RESULT, value) for name, value in _named(result)]

    return call


def _named(structure: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors of a structure, each with its path."""
    if isinstance(structure, Mapping):
        items: Iterable[tuple[Any, Any]] = structure.items()
    elif isinstance(structure, (tuple, list)):
        items = enumerate(structure)
    else:
        if structure is not None:
            yield name, structure
        return
    for key, value in items:
        yield from _named(value, f"{name}[{key}]" if isinstance(key, int) else f"{name}/{key}".lstrip("/"))


def _dense(value: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(value)


def name_of(subject: Any) -> str:
    """The name of a model or function, for messages."""
    name = getattr(subject, "name", None) or getattr(subject, "__name__", None) or type(subject).__name__
    return name.decode() if isinstance(name, bytes) else str(name)


def flat_step(subject: Any, batches: Iterable[Any], limit: int) -> tuple[Step, FlatStep]:
    """The step of a subject, and its flat graph.

    Args:
        subject: a Keras model, a function, or a :class:`SessionRuns`.
        batches: what to feed.
        limit: how many batches are used.

    Raises:
        ConfigError, GraphError: as :func:`trace` and :func:`flatten`.
    """
    if isinstance(subject, SessionRuns):
        return subject.flat_step(itertools.islice(batches, limit))
    step, function = trace(subject, batches, limit)
    return step, flatten(step, function)


_WHERE = "tf.compat.v1.Session.run"


@dataclasses.dataclass(frozen=True)
class SessionRuns:
    """Runs of one session that have the same fetches.

    Attributes:
        name: the name of the runs.
        graph: the session's ``tf.Graph``.
        fetches: the fetched tensors.
        targets: the operations that they ran.
        fed: the tensors that were fed, and the outputs of data sources.
        variables: the values of all variables of the graph, by the name of the variable's node.
        options: the session's RewriterConfig.
    """

    name: str
    graph: Any
    fetches: Sequence[Any]
    targets: Sequence[Any]
    fed: Sequence[Any]
    variables: Mapping[str, np.ndarray]
    options: Any

    def flat_step(self, batches: Iterable[Sequence[np.ndarray]]) -> tuple[Step, FlatStep]:
        """The step and its flat graph.

        Args:
            batches: for each run the values of ``fed``.

        Raises:
            GraphError: a variable has no value.
        """
        graph, feeds = _with_placeholders(self.graph.as_graph_def(add_shapes=True), self.fed)
        renamed = {tensor.name: f"{name}:0" for tensor, name in zip(self.fed, feeds, strict=True)}
        results = [renamed.get(tensor.name, tensor.name) for tensor in self.fetches]
        targets = [operation.name for operation in self.targets]
        graph = _cut_out(graph, {*(name.partition(":")[0] for name in (*results, *targets)), *feeds})
        variables = {
            node.name: self._variable(node)
            for node in graph.node
            if node.op in VARIABLE_HANDLES or node.op in REFERENCE_VARIABLES
        }
        ends = [*results, *(f"{name}:0" for name in feeds), *targets, *variables]
        flat, shapes, is_compiled = flatten_graph(graph, ends, self.options)
        floats = [number for number, tensor in enumerate(self.fetches) if tensor.dtype.base_dtype.is_floating]
        step = Step(
            results=tuple((RESULT, tensor.name) for tensor in self.fetches),
            floats=tuple(floats),
            batches=tuple(map(tuple, batches)),
        )
        return step, FlatStep(
            graph=flat,
            feeds=feeds,
            captures={},
            variables=variables,
            results=tuple(results),
            effects=tuple(targets),
            is_compiled=is_compiled,
            shapes=shapes,
        )

    def _variable(self, node: Any) -> Variable:
        if node.name not in self.variables:
            raise GraphError(
                f"the value of variable {node.name!r} is not known",
                where=_WHERE,
                fix="Create variables with tf.compat.v1.get_variable, which makes a node that reads them",
            )
        value = self.variables[node.name]
        return Variable(node.name, aligned(value), node.attr["dtype"].type, node.op in REFERENCE_VARIABLES)


def _with_placeholders(graph: Any, fed: Sequence[Any]) -> tuple[Any, tuple[str, ...]]:
    """The graph with a placeholder for each tensor that is fed; and the placeholders' names."""
    import tensorflow as tf

    names = {tensor.name: _placeholder_name(tensor) for tensor in fed}
    replaced = {tensor.op.name for tensor in fed if len(tensor.op.outputs) == 1}
    result = tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library)
    for tensor in fed:
        node = result.node.add(name=names[tensor.name], op="Placeholder")
        node.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
        node.attr["_output_shapes"].list.shape.add().CopyFrom(tensor.shape.as_proto())
    for node in graph.node:
        if node.name not in replaced:
            added = result.node.add()
            added.CopyFrom(node)
            added.device = ""  # it names the program's cluster, and the comparison runs here
            added.input[:] = [names.get(text if ":" in text else f"{text}:0", text) for text in node.input]
    return result, tuple(names[tensor.name] for tensor in fed)


def _placeholder_name(tensor: Any) -> str:
    """The node's name, if the node has one result; else a new name."""
    name, _, port = tensor.name.partition(":")
    return name if len(tensor.op.outputs) == 1 else f"{name}/amp_tf_fed_{port}"


def _cut_out(graph: Any, ends: set[str]) -> Any:
    """The part of the graph that some nodes need, in the graph's order."""
    import tensorflow as tf

    nodes = {node.name: node for node in graph.node}
    found: set[str] = set()
    waiting = list(ends)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [text.removeprefix("^").partition(":")[0] for text in nodes[name].input]
    result = tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library)
    result.node.extend(node for node in graph.node if node.name in found)
    return result
