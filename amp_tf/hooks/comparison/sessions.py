"""The patch of TF1 sessions: runs that need gradients are training steps, and what they are fed are batches.

The runs themselves go on as usual, except that they also fetch what their data sources produce. After the wanted number
of runs with the same fetches, or when the session closes or the program ends, they are compared with the variables'
values of that moment.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from amp_tf.comparing.sessions import SessionRuns
from amp_tf.errors import GraphError
from amp_tf.hooks.comparison.training import Training
from amp_tf.hooks.patches import Patch, calling
from amp_tf.hooks.process import state
from amp_tf.oplists.table import DATA_SOURCES, READ_OPS, REFERENCE_VARIABLES, VARIABLE_HANDLES


@dataclasses.dataclass
class _Kind:
    """Runs that have the same fetches and are fed the same tensors.

    Attributes:
        session: which ran them.
        fetches, targets: the tensors fetched and the operations run.
        given: the outputs of data sources.
        fed: what the program fed.
        needed: the operations that they need.
        batches: for each run the values of ``fed`` and ``given``.
    """

    session: Any
    fetches: Sequence[Any]
    targets: Sequence[Any]
    given: Sequence[Any]
    fed: Sequence[Any]
    needed: Sequence[Any]
    batches: list[tuple[np.ndarray, ...]] = dataclasses.field(default_factory=list)


# By session, then by fetches and feeds; None for runs that do not train.
_kinds: weakref.WeakKeyDictionary[Any, dict[Any, _Kind | None]] = weakref.WeakKeyDictionary()
_gradients: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # names of operations, by graph


def patches(training: Training, library: str) -> list[Patch]:
    """The patches, as tuples: owner, attribute, and what makes its replacement from the original.

    Args:
        training: the state shared by the patches.
        library: ``"tensorflow"``.
    """
    from tensorflow.python.client import session

    state.watch_collections()
    return [
        (session.BaseSession, "_do_run", calling(_run, training)),
        (session.BaseSession, "close", calling(_close, training)),
    ]


def note_gradients(result: Any) -> None:
    """Remembers gradients that were built outside of functions.

    Args:
        result: a nest of tensors, of slices, and of ``None``.
    """
    import tensorflow as tf

    for gradient in tf.nest.flatten(result):
        tensor = getattr(gradient, "values", gradient)
        if tf.is_symbolic_tensor(tensor) and not tensor.graph.building_function:
            _gradients.setdefault(tensor.graph, set()).add(tensor.op.name)


def compare_what_is_there(training: Training, session: Any = None) -> None:
    """Compares the most frequent kind of training runs made so far, if there were any.

    Args:
        training: the state shared by the patches.
        session: only its runs; of all by default.
    """
    known = list(_kinds.values()) if session is None else [_kinds.get(session, {})]
    found = [kind for kinds in known for kind in kinds.values() if kind and kind.batches]
    if found:
        _compare(max(found, key=lambda kind: len(kind.batches)), training)


def _run(
    training: Training,
    original: Any,
    session: Any,
    handle: Any,
    targets: Any,
    fetches: Any,
    feeds: Any,
    *rest: Any,
) -> Any:
    kind = None
    if training.is_awaited and handle is None and not state.is_collecting() and _gradients.get(session.graph):
        with training.surviving():
            kind = _kind_of(session, targets, fetches, feeds)
    if kind is None:
        return original(session, handle, targets, fetches, feeds, *rest)
    results = original(session, handle, targets, [*fetches, *kind.given], feeds, *rest)
    with training.surviving():
        fed = [np.array(feeds[tensor.ref()]) for tensor in kind.fed]
        kind.batches.append((*fed, *results[len(fetches) :]))
        if len(kind.batches) >= training.request.steps:
            _compare(kind, training)
    return results[: len(fetches)]


def _close(training: Training, original: Any, session: Any) -> None:
    if training.is_awaited and not state.is_collecting():
        with training.surviving():
            compare_what_is_there(training, session)
    original(session)


def _kind_of(session: Any, targets: Sequence[Any], fetches: Sequence[Any], feeds: Any) -> _Kind | None:
    fed = [ref.deref() for ref in feeds]
    kinds = _kinds.setdefault(session, {})
    key = tuple(frozenset(each.name for each in wanted) for wanted in (targets, fetches, fed))
    if key not in kinds:
        needed = _needed([*targets, *(tensor.op for tensor in fetches)], {tensor.name for tensor in fed})
        trains = not _gradients[session.graph].isdisjoint(operation.name for operation in needed)
        given = [tensor for operation in needed if operation.type in DATA_SOURCES for tensor in operation.outputs]
        if trains:
            _check_fetchable(given)
        kinds[key] = _Kind(session, list(fetches), list(targets), given, fed, needed) if trains else None
    return kinds[key]


def _check_fetchable(given: Sequence[Any]) -> None:
    """Checks that the outputs of data sources can be fetched beside the program's own fetches, and fed.

    Raises:
        GraphError: it is in a branch or loop, where it may be dead, or no array.
    """
    for tensor in given:
        if tensor.op._get_control_flow_context() is not None or tensor.dtype.name in ("variant", "resource"):
            raise GraphError(
                f"its data come from {tensor.op.name!r}, in a branch or loop or as no arrays ({tensor.dtype.name})",
                where="Session.run",
                fix="Take the data outside of tf.cond and tf.while_loop, as dense tensors",
            )


def _needed(ends: Iterable[Any], fed: set[str]) -> list[Any]:
    """The operations that some operations need, given that some tensors are fed."""
    found: dict[str, Any] = {}
    waiting = list(ends)
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found[operation.name] = operation
            waiting += [tensor.op for tensor in operation.inputs if tensor.name not in fed]
            waiting += operation.control_inputs
    return list(found.values())


def _compare(kind: _Kind, training: Training) -> None:
    _kinds.clear()  # frees sessions and batches; nothing is compared after this
    if kind.session.sess_str:
        raise GraphError(
            "the session is one of a server", where="tf.compat.v1.Session", fix="Train in one process, without a target"
        )
    name = kind.targets[0].name if kind.targets else kind.fetches[0].op.name
    runs = SessionRuns(
        name=name,
        graph=kind.session.graph,
        fetches=kind.fetches,
        targets=kind.targets,
        fed=(*kind.fed, *kind.given),
        variables=_values(kind),
        options=kind.session._config.graph_options.rewrite_options,
    )
    note = f"{name} was compared with the variables as they are after {len(kind.batches)} runs of it"
    training.compare(runs, kind.batches, (note,))


def _values(kind: _Kind) -> dict[str, np.ndarray]:
    """The values of the variables, read by nodes that exist already, because the graph may be finalized."""
    reads = {}
    for operation in kind.needed:
        if operation.type in REFERENCE_VARIABLES:
            reads[operation.name] = operation.outputs[0]
        elif operation.type in VARIABLE_HANDLES:
            readers = operation.outputs[0].consumers()
            free = [reader for reader in readers if reader.type in READ_OPS and not reader.control_inputs]
            reads.update((operation.name, reader.outputs[0]) for reader in free[:1])
    values: dict[str, np.ndarray] = kind.session.run(reads)
    return values
