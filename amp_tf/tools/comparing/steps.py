"""The step to compare, with named results, and its batches, traced from a model or function."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig, check_config
from amp_tf.errors import ConfigError, GraphError, first_line
from amp_tf.tools.comparing import flattening
from amp_tf.tools.comparing.calls import Call, Calls
from amp_tf.tools.comparing.flattening import (
    GRADIENT,
    LOSS,
    OWN_SCOPE,
    RESULT,
    Batch,
    FlatStep,
    Title,
)
from amp_tf.tools.comparing.sessions import SessionRuns

_WHERE = "compare(batches)"
_ARRAYS = "Pass numpy arrays or eager tensors"
_BATCHES = "Pass rows such as [(x, y), …], or a tf.data.Dataset"


def check_settings(config: AmpConfig | None, steps: int) -> AmpConfig:
    """Checks the arguments, and returns the configuration.

    It is the environment's by default. An invalid argument raises a ConfigError.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ConfigError(
            f"{steps!r} is not a number of batches", where="steps", fix="Write 1 or more"
        )
    if config is None:
        config = AmpConfig.from_env()
    return check_config(config, where="compare(config)")


def flat_step(subject: Any, batches: Iterable[Any], limit: int) -> FlatStep:
    """Returns the step of a Keras model, a function or :class:`SessionRuns` as a flat graph.

    The step of a compiled Keras model gives loss and gradients, and takes the loss scale as its
    last argument; that of another model gives its results. A function is a ``tf.function``, a
    concrete function, a signature of a SavedModel, any callable, or the :class:`Calls` of one.

    Args:
        subject: the model, function, calls or runs.
        batches: for a compiled model ``(x, y)`` or ``(x, y, sample_weight)``; for others a tuple of
            arguments, a mapping of named ones, or the only argument.
        limit: the most batches that are used.

    Raises:
        ConfigError: there are no batches, or they cannot be fed.
        GraphError: the step cannot be traced with them.
    """
    if isinstance(subject, SessionRuns):
        return subject.flat_step(itertools.islice(batches, limit))
    has_optimizer = getattr(subject, "optimizer", None) is not None
    is_training = hasattr(subject, "compute_loss") and has_optimizer
    if isinstance(subject, Calls):
        calls = subject.alike
    else:
        _check_subject(subject, batches)
        calls = []
        for batch in itertools.islice(batches, limit):
            calls.append(_as_call(batch, subject, is_training))
            _check_structure(calls[0], calls[-1])
    if not calls:
        raise ConfigError("there are no batches", where=_WHERE, fix=_BATCHES)
    rows = tuple(map(_arrays, calls))
    function, titles = _traced(subject, calls[0], rows, is_training)
    is_compiled = getattr(subject, "_jit_compile", None) or getattr(subject, "jit_compile", None)
    return flattening.flatten(
        function, titles, rows, is_scaled=is_training, is_compiled=bool(is_compiled)
    )


def _check_subject(subject: Any, batches: Any) -> None:
    """Checks the types of what the user compares, by a ConfigError."""
    if not callable(subject):
        raise ConfigError(
            f"expected a Keras model or a function, got {type(subject).__name__}",
            where="compare(model_or_function)",
            fix="Of a SavedModel pass a signature: "
            "tf.saved_model.load(folder).signatures['serving_default']",
        )
    if isinstance(batches, (str, bytes, Mapping)) or not isinstance(batches, Iterable):
        raise ConfigError(
            f"expected batches, got {type(batches).__name__}", where=_WHERE, fix=_BATCHES
        )


def _traced(
    subject: Any, call: Call, rows: Sequence[Batch], is_training: bool
) -> tuple[Any, Sequence[Title]]:
    """Traces a step; returns the concrete function, and the title of each result."""
    import tensorflow as tf

    titles: list[Title] = []
    # Without jit_compile: nodes inside of XLA's functions cannot be fetched.
    inner = getattr(subject, "python_function", subject)
    if isinstance(subject, Calls):
        inner = subject.function
    first = tf.nest.flatten(call)

    def step(*tensors: Any) -> list[Any]:
        remaining = iter(tensors)
        # Autograph, which converts this function, leaves comprehensions alone.
        leaves = [next(remaining) if isinstance(leaf, np.ndarray) else leaf for leaf in first]
        arguments, named = tf.nest.pack_sequence_as(call, leaves)
        if is_training:
            results = _training_results(subject, *arguments, scale=tensors[-1])
        else:
            values = _named(inner(*arguments, **named))
            results = [(RESULT, name or RESULT, value) for name, value in values]
        titles[:] = [Title(kind, name) for kind, name, _ in results]
        return [tf.convert_to_tensor(value) for _, _, value in results]

    specs = []
    for values in zip(*rows, strict=True):  # a dimension that differs between batches is left open
        dtype = values[0].dtype
        if dtype.kind in "OSU":
            dtype = tf.string
        first_spec, *others = (tf.TensorSpec(value.shape, dtype) for value in values)
        specs.append(first_spec.most_specific_common_supertype(others))
    if is_training:
        specs.append(tf.TensorSpec((), tf.float32, name="loss_scale"))
    try:
        return tf.function(step).get_concrete_function(*specs), titles
    except Exception as error:  # whatever the user's code, Keras or TensorFlow raise
        why = first_line(error).rstrip(".")
        raise GraphError(
            f"the step cannot be traced with the batches ({why})",
            where=name_of(subject),
            fix="Call it once with the first batch to see the whole error; each batch is a tuple "
            "of its arguments",
        ) from error


def _as_call(batch: Any, subject: Any, is_training: bool) -> Call:
    """Returns the positional and named arguments of a batch, as arrays."""
    import tensorflow as tf

    arguments: tuple[Any, ...] = (batch,)
    named: dict[str, Any] = {}
    if isinstance(batch, (tuple, list)):
        arguments = tuple(batch)
    if is_training:
        if len(arguments) not in (2, 3):
            raise ConfigError(
                "a batch of a compiled model is (x, y) or (x, y, sample_weight)",
                where=_WHERE,
                fix=_BATCHES,
            )
    elif hasattr(subject, "layers") and hasattr(subject, "trainable_variables"):
        arguments = arguments[:1]  # a model takes all inputs at once
    elif isinstance(batch, Mapping):
        arguments = ()
        named = dict(batch)
    args, kwargs = tf.nest.map_structure(_array, (arguments, named))
    return args, kwargs


def _check_structure(first: Call, call: Call) -> None:
    """Checks that a call has the structure of the first one, by a ConfigError."""
    import tensorflow as tf

    try:
        tf.nest.assert_same_structure(first, call)
    except (TypeError, ValueError):
        raise ConfigError(
            "batches differ in structure from the first one",
            where=_WHERE,
            fix="Pass the same arguments in each batch",
        ) from None


def _arrays(call: Call) -> Batch:
    import tensorflow as tf

    return tuple(leaf for leaf in tf.nest.flatten(call) if isinstance(leaf, np.ndarray))


def _array(leaf: Any) -> np.ndarray:
    """Returns a leaf of a batch as an array; a ConfigError where it is none."""
    import tensorflow as tf

    fault = ConfigError(f"{leaf!r} has no values that can be fed", where=_WHERE, fix=_ARRAYS)
    is_symbolic = isinstance(leaf, tf.Tensor) and not hasattr(leaf, "numpy")
    if is_symbolic or "KerasTensor" in type(leaf).__name__:
        raise fault
    array = np.asarray(leaf)
    if array.dtype == object and not all(isinstance(item, (str, bytes)) for item in array.flat):
        raise fault
    if isinstance(leaf, float):
        return array.astype(np.float32)
    return array


def _training_results(
    model: Any, x: Any, y: Any, weight: Any = None, *, scale: Any
) -> list[tuple[str, str, Any]]:
    """Returns loss, gradients and predictions of a compiled Keras model.

    Gradients are those of the scaled loss, unscaled.
    """
    import tensorflow as tf

    has_mode = getattr(
        model, "_call_has_training_arg", getattr(model, "_expects_training_arg", True)
    )
    mode = {"training": True} if has_mode else {}
    with tf.GradientTape() as tape:
        predictions = model(x, **mode)
        loss = model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weight)
        scaled = loss * tf.cast(scale, loss.dtype)
    gradients = tape.gradient(scaled, model.trainable_variables)
    results = [(LOSS, LOSS, loss)]
    with tf.name_scope(OWN_SCOPE):
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            if gradient is not None:
                unscaled = tf.convert_to_tensor(gradient) / tf.cast(scale, gradient.dtype)
                results.append((GRADIENT, getattr(variable, "path", variable.name), unscaled))
    for name, value in _named(predictions):
        results.append((RESULT, name or "prediction", value))
    return results


def _named(structure: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a result, each with its place in it as a name."""
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            yield from _named(value, f"{name}/{key}".lstrip("/"))
    elif isinstance(structure, (tuple, list)):
        for number, value in enumerate(structure):
            yield from _named(value, f"{name}[{number}]")
    elif structure is not None:
        yield name, structure


def name_of(subject: Any) -> str:
    """Returns the name of a model or function, for messages."""
    own = getattr(subject, "name", None) or getattr(subject, "__name__", None)
    name = own or type(subject).__name__
    if isinstance(name, bytes):
        return name.decode()
    return str(name)
