"""TF1 sessions: runs that need gradients are training steps, and what they are fed are batches.

The runs themselves go on as usual, except that they also fetch what their data sources produce. After the wanted number
of runs with the same fetches, or when the session closes or the program ends, they become a step with the variables'
values of that moment: it is cut out of the session's graph, and fed what the runs were fed and what their data sources
produced, so that each version gets the same batches.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.hooks import state
from amp_tf.hooks.patches import Patch, calling
from amp_tf.oplists.table import DATA_SOURCES, READ_OPS, REFERENCE_VARIABLES, VARIABLE_HANDLES
from amp_tf.tools.comparing.flattening import RESULT, FlatStep, Step, Variable, flatten_graph, reached

if TYPE_CHECKING:
    from amp_tf.tools.comparing.training import Training  # which compares what is found here


@dataclasses.dataclass
class SessionRuns:
    """Runs of one session that have the same fetches and are fed the same tensors.

    Attributes:
        session: which ran them.
        fetches, targets: the tensors fetched and the operations run.
        fed: the tensors that the program fed.
        given: the outputs of data sources.
        needed: the operations that they need.
        batches: for each run the values of ``fed`` and ``given``.
    """

    session: Any
    fetches: Sequence[Any]
    targets: Sequence[Any]
    fed: Sequence[Any]
    given: Sequence[Any]
    needed: Sequence[Any]
    batches: list[tuple[np.ndarray, ...]] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the runs."""
        return str(self.targets[0].name if self.targets else self.fetches[0].op.name)

    def flat_step(self, batches: Iterable[Sequence[np.ndarray]]) -> tuple[Step, FlatStep]:
        """The step and its flat graph, with the variables' present values.

        Args:
            batches: for each run the values of ``fed`` and ``given``.

        Raises:
            GraphError: a variable has no value.
        """
        import tensorflow as tf

        whole = self.session.graph.as_graph_def(add_shapes=True)
        feeds: dict[str, str] = {}  # a placeholder for each tensor: in place of its node, if that has no other results
        replaced: dict[str, Any] = {}
        for tensor in (*self.fed, *self.given):
            name, _, port = tensor.name.partition(":")
            feeds[tensor.name] = name if len(tensor.op.outputs) == 1 else f"{name}/amp_tf_fed_{port}"
            replaced[feeds[tensor.name]] = node = tf.compat.v1.NodeDef(name=feeds[tensor.name], op="Placeholder")
            node.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
            node.attr["_output_shapes"].list.shape.add().CopyFrom(tensor.shape.as_proto())
        nodes = dict(replaced)
        for node in whole.node:
            if node.name not in replaced:
                nodes[node.name] = node
                node.device = ""  # it names the program's cluster, and the comparison runs here
                node.input[:] = [feeds.get(text if ":" in text else f"{text}:0", text) for text in node.input]
        results = [f"{feeds[tensor.name]}:0" if tensor.name in feeds else tensor.name for tensor in self.fetches]
        targets = [operation.name for operation in self.targets]
        ends = {*(name.partition(":")[0] for name in results), *targets, *feeds.values()}
        sources = {
            name: [text.removeprefix("^").partition(":")[0] for text in node.input] for name, node in nodes.items()
        }
        found = reached(ends, sources.__getitem__)
        needed = [node for name, node in nodes.items() if name in found]
        graph = tf.compat.v1.GraphDef(node=needed, versions=whole.versions, library=whole.library)
        values = self._values()
        variables = {}
        for node in graph.node:
            if node.op in VARIABLE_HANDLES or node.op in REFERENCE_VARIABLES:
                if node.name not in values:
                    what = f"the value of variable {node.name!r} is not known"
                    fix = "Create variables with tf.compat.v1.get_variable, which makes a node that reads them"
                    raise GraphError(what, where="tf.compat.v1.Session.run", fix=fix)
                value, is_reference = values[node.name], node.op in REFERENCE_VARIABLES
                variables[node.name] = Variable(node.name, value, node.attr["dtype"].type, is_reference)
        wanted = [*results, *(f"{name}:0" for name in feeds.values()), *targets, *variables]
        options = self.session._config.graph_options.rewrite_options
        flat, shapes, is_compiled = flatten_graph(graph, wanted, options)
        floats = [number for number, tensor in enumerate(self.fetches) if tensor.dtype.base_dtype.is_floating]
        step = Step(
            results=tuple((RESULT, tensor.name) for tensor in self.fetches),
            floats=tuple(floats),
            batches=tuple(map(tuple, batches)),
        )
        return step, FlatStep(
            graph=flat,
            feeds=tuple(feeds.values()),
            captures={},
            variables=variables,
            results=tuple(results),
            effects=tuple(targets),
            is_compiled=is_compiled,
            shapes=shapes,
        )

    def _values(self) -> dict[str, np.ndarray]:
        """The values of the variables, read by nodes that exist already, because the graph may be finalized."""
        reads = {}
        for operation in self.needed:
            if operation.type in REFERENCE_VARIABLES:
                reads[operation.name] = operation.outputs[0]
            elif operation.type in VARIABLE_HANDLES:
                readers = operation.outputs[0].consumers()
                free = [reader for reader in readers if reader.type in READ_OPS and not reader.control_inputs]
                reads.update((operation.name, reader.outputs[0]) for reader in free[:1])
        values: dict[str, np.ndarray] = self.session.run(reads)
        return values


# By session, then by fetches and feeds; None for runs that do not train.
_kinds: weakref.WeakKeyDictionary[Any, dict[Any, SessionRuns | None]] = weakref.WeakKeyDictionary()
_gradients: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # names of operations, by graph


def patches(training: Training) -> list[Patch]:
    """The patches, which share the state of a training."""
    from tensorflow.python.client import session

    state.watch_collections()
    return [
        (session.BaseSession, "_do_run", calling(_run, training)),
        (session.BaseSession, "close", calling(_close, training)),
    ]


def note_gradients(result: Any) -> None:
    """Remembers gradients that were built outside of functions: a nest of tensors, of slices, and of ``None``."""
    import tensorflow as tf

    for gradient in tf.nest.flatten(result):
        tensor = getattr(gradient, "values", gradient)
        if tf.is_symbolic_tensor(tensor) and not tensor.graph.building_function:
            _gradients.setdefault(tensor.graph, set()).add(tensor.op.name)


def compare_what_is_there(training: Training, session: Any = None) -> None:
    """Compares the most frequent kind of training runs made so far, if there were any; of one session or of all."""
    known = list(_kinds.values()) if session is None else [_kinds.get(session, {})]
    found = [runs for kinds in known for runs in kinds.values() if runs and runs.batches]
    if found:
        _compare(max(found, key=lambda runs: len(runs.batches)), training)


def _run(
    training: Training, original: Any, session: Any, handle: Any, targets: Any, fetches: Any, feeds: Any, *rest: Any
) -> Any:
    runs = None
    if training.is_awaited and handle is None and not state.is_collecting() and _gradients.get(session.graph):
        with training.surviving():
            runs = _runs_of(session, targets, fetches, [ref.deref() for ref in feeds])
    if runs is None:
        return original(session, handle, targets, fetches, feeds, *rest)
    results = original(session, handle, targets, [*fetches, *runs.given], feeds, *rest)
    with training.surviving():
        fed = [np.array(feeds[tensor.ref()]) for tensor in runs.fed]
        runs.batches.append((*fed, *results[len(fetches) :]))
        if len(runs.batches) >= training.request.steps:
            _compare(runs, training)
    return results[: len(fetches)]


def _close(training: Training, original: Any, session: Any) -> None:
    if training.is_awaited and not state.is_collecting():
        with training.surviving():
            compare_what_is_there(training, session)
    original(session)


def _runs_of(session: Any, targets: Sequence[Any], fetches: Sequence[Any], fed: Sequence[Any]) -> SessionRuns | None:
    """The runs like this one; ``None`` where these do not train."""
    kinds = _kinds.setdefault(session, {})
    key = tuple(frozenset(each.name for each in wanted) for wanted in (targets, fetches, fed))
    if key not in kinds:
        names = {tensor.name for tensor in fed}

        def sources(operation: Any) -> list[Any]:
            return [*(given.op for given in operation.inputs if given.name not in names), *operation.control_inputs]

        needed = list(reached([*targets, *(tensor.op for tensor in fetches)], sources))
        trains = not _gradients[session.graph].isdisjoint(operation.name for operation in needed)
        given = [tensor for operation in needed if operation.type in DATA_SOURCES for tensor in operation.outputs]
        if trains:
            for tensor in given:  # they are fetched beside the program's own fetches, and fed
                if tensor.op._get_control_flow_context() is not None or tensor.dtype.name in ("variant", "resource"):
                    raise GraphError(
                        f"its data come from {tensor.op.name!r}, in a branch or loop or as no arrays "
                        f"({tensor.dtype.name})",
                        where="Session.run",
                        fix="Take the data outside of tf.cond and tf.while_loop, as dense tensors",
                    )
        runs = SessionRuns(session, list(fetches), list(targets), list(fed), given, needed)
        kinds[key] = runs if trains else None
    return kinds[key]


def _compare(runs: SessionRuns, training: Training) -> None:
    _kinds.clear()  # frees sessions and batches; nothing is compared after this
    if runs.session.sess_str:
        fix = "Train in one process, without a target"
        raise GraphError("the session is one of a server", where="tf.compat.v1.Session", fix=fix)
    note = f"{runs.name} was compared with the variables as they are after {len(runs.batches)} runs of it"
    training.compare(runs, runs.batches, (note,))
