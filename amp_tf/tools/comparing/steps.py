"""The step to compare, with named results, and its batches: traced from a model or function, or cut
out of a TF1 graph.

Runs of a session become a step with the variables' values of that moment. It is fed what they were
fed, and what their data sources produced, so that each version gets the same batches.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig, check_config
from amp_tf.errors import ConfigError, GraphError
from amp_tf.oplists.table import READ_OPS, REFERENCE_VARIABLES, VARIABLE_HANDLES
from amp_tf.tools.comparing import flattening
from amp_tf.tools.comparing.flattening import GRADIENT, LOSS, OWN_SCOPE, RESULT, FlatStep
from amp_tf.values import check_pattern

_WHERE = "compare(batches)"
_BATCHES = "Pass rows such as [(x, y), …], or a tf.data.Dataset"


def check_settings(config: AmpConfig | None, steps: int, nodes: str | None = None) -> AmpConfig:
    """Checks the arguments, by a ConfigError; returns the configuration, by default the
    environment's.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ConfigError(
            f"{steps!r} is not a number of batches", where="steps", fix="Write 1 or more"
        )
    if nodes is not None:
        check_pattern(nodes, where="nodes")
    return AmpConfig.from_env() if config is None else check_config(config, where="compare(config)")


def flat_step(subject: Any, batches: Iterable[Any], limit: int) -> FlatStep:
    """The step of a :class:`SessionRuns`, or one that is traced from a Keras model or a function,
    as a flat graph.

    A compiled Keras model gives loss and gradients, and takes the loss scale last; another one its
    results. Else it is a ``tf.function``, a concrete function, a signature of a SavedModel, or any
    callable. Of the batches (for a compiled model ``(x, y)`` or ``(x, y, sample_weight)``, for
    others a tuple of arguments, a mapping of named ones, or the only argument) at most ``limit``
    are used. Raises a ConfigError where there are none, or they cannot be fed, and a GraphError
    where the step cannot be traced with them.
    """
    if isinstance(subject, SessionRuns):
        return subject.flat_step(itertools.islice(batches, limit))
    import tensorflow as tf

    if not callable(subject):
        raise ConfigError(
            f"expected a Keras model or a function, got {type(subject).__name__}",
            where="compare(model_or_function)",
            fix=(
                "Of a SavedModel pass a signature: "
                "tf.saved_model.load(folder).signatures['serving_default']"
            ),
        )
    is_training = (
        hasattr(subject, "compute_loss") and getattr(subject, "optimizer", None) is not None
    )
    if isinstance(batches, (str, bytes, Mapping)) or not isinstance(batches, Iterable):
        raise ConfigError(
            f"expected batches, got {type(batches).__name__}", where=_WHERE, fix=_BATCHES
        )
    calls = [_as_call(batch, subject, is_training) for batch in itertools.islice(batches, limit)]
    if not calls:
        raise ConfigError("there are no batches", where=_WHERE, fix=_BATCHES)
    rows = tuple(_leaves(call, calls[0]) for call in calls)
    results: list[tuple[str, str]] = []
    inner = getattr(
        subject, "python_function", subject
    )  # without jit_compile: XLA's nodes cannot be fetched

    def step(*leaves: Any) -> list[Any]:
        arguments, named = tf.nest.pack_sequence_as(calls[0], list(leaves[: len(rows[0])]))
        if is_training:
            found = _training_results(subject, *arguments, scale=leaves[-1])
        else:
            found = [
                (RESULT, name or RESULT, value)
                for name, value in _named(inner(*arguments, **named))
            ]
        results[:] = [(kind, name) for kind, name, _ in found]
        return [tf.convert_to_tensor(value) for _, _, value in found]

    specs = []
    for values in zip(*rows, strict=True):  # dimensions that differ between batches are left open
        dtype = tf.string if values[0].dtype.kind in "OSU" else values[0].dtype
        first, *others = (tf.TensorSpec(value.shape, dtype) for value in values)
        specs.append(first.most_specific_common_supertype(others))
    if is_training:
        specs.append(tf.TensorSpec((), tf.float32, name="loss_scale"))
    try:
        function = tf.function(step).get_concrete_function(*specs)
    except Exception as error:  # whatever the user's code, Keras or TensorFlow raise
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().rstrip(".")
        fix = (
            "Call it once with the first batch to see the whole error; each batch is a tuple of "
            "its arguments"
        )
        what = f"the step cannot be traced with the batches ({why})"
        raise GraphError(what, where=name_of(subject), fix=fix) from error
    is_compiled = bool(
        getattr(subject, "_jit_compile", None) or getattr(subject, "jit_compile", None)
    )
    return flattening.flatten(
        function, results, rows, is_scaled=is_training, is_compiled=is_compiled
    )


def _as_call(batch: Any, subject: Any, is_training: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if is_training:
        if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
            fix = _BATCHES
            raise ConfigError(
                "a batch of a compiled model is (x, y) or (x, y, sample_weight)",
                where=_WHERE,
                fix=fix,
            )
        return tuple(batch), {}
    if hasattr(subject, "layers") and hasattr(
        subject, "trainable_variables"
    ):  # a model takes all inputs at once
        return (batch[0] if isinstance(batch, (tuple, list)) else batch,), {}
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}


def _leaves(call: Any, first: Any) -> tuple[np.ndarray, ...]:
    import tensorflow as tf

    try:
        tf.nest.assert_same_structure(first, call)
    except (TypeError, ValueError):
        fix = "Pass the same arguments in each batch"
        raise ConfigError(
            "batches differ in structure from the first one", where=_WHERE, fix=fix
        ) from None
    leaves = []
    for leaf in tf.nest.flatten(call):
        is_symbolic = isinstance(leaf, tf.Tensor) and not hasattr(leaf, "numpy")
        array = None if is_symbolic or "KerasTensor" in type(leaf).__name__ else np.asarray(leaf)
        if array is None or (
            array.dtype == object and not all(isinstance(item, (str, bytes)) for item in array.flat)
        ):
            what = f"{leaf!r} has no values that can be fed"
            raise ConfigError(what, where=_WHERE, fix="Pass numpy arrays or eager tensors")
        leaves.append(array.astype(np.float32) if isinstance(leaf, float) else array)
    return tuple(leaves)


def _training_results(
    model: Any, x: Any, y: Any, weight: Any = None, *, scale: Any
) -> list[tuple[str, str, Any]]:
    """Loss, gradients and predictions of a compiled Keras model; gradients are those of the scaled
    loss, unscaled.
    """
    import tensorflow as tf

    has_mode = getattr(
        model, "_call_has_training_arg", getattr(model, "_expects_training_arg", True)
    )
    with tf.GradientTape() as tape:
        predictions = model(x, training=True) if has_mode else model(x)
        loss = model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weight)
        scaled = loss * tf.cast(scale, loss.dtype)
    names = [getattr(variable, "path", variable.name) for variable in model.trainable_variables]
    gradients = tape.gradient(scaled, model.trainable_variables)
    with tf.name_scope(OWN_SCOPE):
        unscaled = [
            g if g is None else tf.convert_to_tensor(g) / tf.cast(scale, g.dtype) for g in gradients
        ]
    return [
        (LOSS, LOSS, loss),
        *((GRADIENT, name, g) for name, g in zip(names, unscaled, strict=True) if g is not None),
        *((RESULT, name or "prediction", value) for name, value in _named(predictions)),
    ]


def _named(structure: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(structure, Mapping):
        items: Iterable[tuple[Any, Any]] = structure.items()
    elif isinstance(structure, (tuple, list)):
        items = enumerate(structure)
    else:
        if structure is not None:
            yield name, structure
        return
    for key, value in items:
        yield from _named(
            value, f"{name}[{key}]" if isinstance(key, int) else f"{name}/{key}".lstrip("/")
        )


def name_of(subject: Any) -> str:
    """The name of a model or function, for messages."""
    name = (
        getattr(subject, "name", None)
        or getattr(subject, "__name__", None)
        or type(subject).__name__
    )
    return name.decode() if isinstance(name, bytes) else str(name)


@dataclasses.dataclass
class SessionRuns:
    """Runs of one session that have the same fetches and are fed the same tensors."""

    session: Any  #: which ran them
    fetches: Sequence[Any]  #: the tensors fetched and the operations run
    targets: Sequence[Any]
    fed: Sequence[Any]  #: the tensors that the program fed
    given: Sequence[Any]  #: the outputs of data sources
    needed: Sequence[Any]  #: the operations that they need
    #: for each run the values of ``fed`` and ``given``
    batches: list[tuple[np.ndarray, ...]] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the runs."""
        return str(self.targets[0].name if self.targets else self.fetches[0].op.name)

    def flat_step(self, batches: Iterable[Sequence[np.ndarray]]) -> FlatStep:
        """The step as a flat graph, with the variables' present values; a GraphError where one has
        none.

        Batches have the values of ``fed`` and ``given``.
        """
        import tensorflow as tf

        whole = self.session.graph.as_graph_def(add_shapes=True)
        feeds: dict[
            str, str
        ] = {}  # a placeholder for each tensor: in place of its node, if that has no other results
        replaced: dict[str, Any] = {}
        for tensor in (*self.fed, *self.given):
            name, _, port = tensor.name.partition(":")
            feeds[tensor.name] = (
                name if len(tensor.op.outputs) == 1 else f"{name}/amp_tf_fed_{port}"
            )
            replaced[feeds[tensor.name]] = node = tf.compat.v1.NodeDef(
                name=feeds[tensor.name], op="Placeholder"
            )
            node.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
            node.attr["_output_shapes"].list.shape.add().CopyFrom(tensor.shape.as_proto())
        nodes = dict(replaced)
        for node in whole.node:
            if node.name not in replaced:
                nodes[node.name] = node
                node.device = ""  # it names the program's cluster, and the comparison runs here
                node.input[:] = [
                    feeds.get(text if ":" in text else f"{text}:0", text) for text in node.input
                ]
        results = [
            f"{feeds[tensor.name]}:0" if tensor.name in feeds else tensor.name
            for tensor in self.fetches
        ]
        targets = [operation.name for operation in self.targets]
        ends = {*(name.partition(":")[0] for name in results), *targets, *feeds.values()}
        sources = {
            name: [text.removeprefix("^").partition(":")[0] for text in node.input]
            for name, node in nodes.items()
        }
        found = flattening.reached(ends, sources.__getitem__)
        needed = [node for name, node in nodes.items() if name in found]
        graph = tf.compat.v1.GraphDef(node=needed, versions=whole.versions, library=whole.library)
        reads = {}  # by nodes that exist already, because the program's graph may be finalized
        for operation in self.needed:
            if operation.type in REFERENCE_VARIABLES:
                reads[operation.name] = operation.outputs[0]
            elif operation.type in VARIABLE_HANDLES:
                readers = operation.outputs[0].consumers()
                free = [
                    reader
                    for reader in readers
                    if reader.type in READ_OPS and not reader.control_inputs
                ]
                reads.update((operation.name, reader.outputs[0]) for reader in free[:1])
        values = self.session.run(reads)
        variables = {}
        for node in graph.node:
            if node.op in VARIABLE_HANDLES or node.op in REFERENCE_VARIABLES:
                if node.name not in values:
                    what = f"the value of variable {node.name!r} is not known"
                    fix = (
                        "Create variables with tf.compat.v1.get_variable, which makes a node that "
                        "reads them"
                    )
                    raise GraphError(what, where="tf.compat.v1.Session.run", fix=fix)
                value, is_reference = values[node.name], node.op in REFERENCE_VARIABLES
                variables[node.name] = flattening.Variable(
                    node.name, value, node.attr["dtype"].type, is_reference
                )
        wanted = [*results, *(f"{name}:0" for name in feeds.values()), *targets, *variables]
        options = self.session._config.graph_options.rewrite_options
        flat, shapes, is_compiled = flattening.flatten_graph(graph, wanted, options)
        named = zip(self.fetches, results, strict=True)
        return FlatStep(
            graph=flat,
            batches=tuple(map(tuple, batches)),
            feeds=tuple(feeds.values()),
            captures={},
            variables=variables,
            results=tuple(results),
            outputs=tuple(
                (RESULT, one.name, name) for one, name in named if one.dtype.base_dtype.is_floating
            ),
            effects=tuple(targets),
            is_compiled=is_compiled,
            shapes=shapes,
        )
