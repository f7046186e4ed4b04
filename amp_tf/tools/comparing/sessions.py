"""Watches the runs of TF1 sessions for those that train, and cuts their step out of the graph.

Runs that need gradients train, and what they are fed are batches. The runs themselves go on as
usual, except that they also fetch what their data sources produce. After the wanted number of runs
with the same fetches, or when the session closes or the program ends, they are compared.

They become a step with the variables' values of that moment. It is fed what they were fed, and what
their data sources produced, so that each version gets the same batches.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph.names import node_of
from amp_tf.graph.protos import new_graph
from amp_tf.hooks import state
from amp_tf.oplists.table import DATA_SOURCES, READ_OPS, REFERENCE_VARIABLES, VARIABLE_HANDLES
from amp_tf.reporting.text import plural
from amp_tf.tools.comparing import flattening
from amp_tf.tools.comparing.calls import Patch
from amp_tf.tools.comparing.flattening import (
    OWN_SCOPE,
    RESULT,
    Batch,
    FlatStep,
    Title,
    with_ancestors,
)

if TYPE_CHECKING:
    from amp_tf.tools.comparing.training import Training

Tensors = Sequence[Any]  #: tensors, or operations


@dataclasses.dataclass
class SessionRuns:
    """Runs of one session that have the same fetches and are fed the same tensors."""

    session: Any  #: which ran them
    fetches: Tensors  #: the tensors fetched
    targets: Tensors  #: the operations run
    fed: Tensors  #: the tensors that the program fed
    given: Tensors  #: the outputs of data sources
    needed: Tensors  #: the operations that they need
    #: for each run the values of ``fed`` and ``given``
    batches: list[Batch] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the first operation that they run, or whose result they fetch."""
        operations = [*self.targets, *(tensor.op for tensor in self.fetches)]
        return str(operations[0].name)

    def flat_step(self, batches: Iterable[Batch]) -> FlatStep:
        """Returns the step as a flat graph, with the variables' present values.

        Raises a GraphError if a variable has none.

        Batches have the values of ``fed`` and ``given``.
        """
        graph, feeds = self._graph()
        results = []
        outputs = []
        for tensor in self.fetches:
            result = tensor.name
            if result in feeds:
                result = f"{feeds[result]}:0"
            results.append(result)
            if tensor.dtype.base_dtype.is_floating:
                outputs.append((Title(RESULT, tensor.name), result))
        targets = tuple(operation.name for operation in self.targets)
        ends = [*results, *feeds.values(), *targets]
        graph = subgraph(graph, map(node_of, ends))
        variables = self._variables(graph)
        options = self.session._config.graph_options.rewrite_options
        flat, shapes, is_compiled = flattening.flatten_graph(graph, [*ends, *variables], options)
        return FlatStep(
            graph=flat,
            batches=tuple(batches),
            feeds=tuple(feeds.values()),
            captures={},
            variables=variables,
            results=tuple(results),
            outputs=tuple(outputs),
            effects=targets,
            is_compiled=is_compiled,
            shapes=shapes,
        )

    def _graph(self) -> tuple[Any, dict[str, str]]:
        """Returns the session's GraphDef with placeholders for what is fed and given.

        Also returns the placeholder's name for each tensor's name.
        """
        import tensorflow as tf

        whole = self.session.graph.as_graph_def(add_shapes=True)
        for node in whole.node:
            node.device = ""  # it names the program's cluster, and the comparison runs here
        graph = tf.Graph()
        inputs: dict[str, Any] = {}
        feeds = {}
        with graph.as_default():
            for number, tensor in enumerate((*self.fed, *self.given)):
                dtype = tensor.dtype.base_dtype
                name = f"{OWN_SCOPE}/fed_{number}"
                placeholder = tf.compat.v1.placeholder(dtype, tensor.shape, name)
                inputs[tensor.name] = placeholder
                inputs[f"^{tensor.op.name}"] = placeholder  # for nodes that wait for its node
                feeds[tensor.name] = placeholder.op.name
            tf.import_graph_def(whole, input_map=inputs, name="")
        return graph.as_graph_def(add_shapes=True), feeds

    def _variables(self, graph: Any) -> dict[str, flattening.Variable]:
        """Reads the variables of a graph, by nodes that exist already.

        The program's graph may be finalized.
        """
        reads = {}
        for operation in self.needed:
            if operation.type in REFERENCE_VARIABLES:
                reads[operation.name] = operation.outputs[0]
            elif operation.type in VARIABLE_HANDLES:
                for reader in operation.outputs[0].consumers():
                    if reader.type in READ_OPS and not reader.control_inputs:
                        reads[operation.name] = reader.outputs[0]
                        break
        values = self.session.run(reads)
        variables = {}
        for node in graph.node:
            is_reference = node.op in REFERENCE_VARIABLES
            if not is_reference and node.op not in VARIABLE_HANDLES:
                continue
            if node.name not in values:
                raise GraphError(
                    f"the value of variable {node.name!r} is not known",
                    where="tf.compat.v1.Session.run",
                    fix="Create variables with tf.compat.v1.get_variable, which makes a node that "
                    "reads them",
                )
            variables[node.name] = flattening.Variable(
                node.name, values[node.name], node.attr["dtype"].type, is_reference
            )
        return variables


def subgraph(graph: Any, ends: Iterable[str]) -> Any:
    """Returns the part of a GraphDef that some nodes need."""
    nodes = {node.name: node for node in graph.node}

    def sources(name: str) -> list[str]:
        return list(map(node_of, nodes[name].input))

    names = with_ancestors(ends, sources)
    needed = [node for name, node in nodes.items() if name in names]
    return new_graph(node=needed, versions=graph.versions, library=graph.library)


class Sessions:
    """The runs of a program's sessions, as far as they train."""

    def __init__(self, training: Training) -> None:
        self._training = training
        # By session, then by fetches and feeds; None for runs that do not train.
        self._kinds: weakref.WeakKeyDictionary[Any, dict[Any, SessionRuns | None]] = (
            weakref.WeakKeyDictionary()
        )
        # The names of the operations that compute gradients, by graph.
        self._gradients: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

    def patches(self) -> list[Patch]:
        """Returns the patches that watch sessions."""
        from tensorflow.python.client import session

        return [
            (session.BaseSession, "_do_run", self._run),
            (session.BaseSession, "close", self._close),
        ]

    def note_gradients(self, gradients: Iterable[Any]) -> None:
        """Notes the tensors of gradients that are in a session's graph."""
        import tensorflow as tf

        for gradient in gradients:
            tensor = getattr(gradient, "values", gradient)
            if tf.is_symbolic_tensor(tensor) and not tensor.graph.building_function:
                self._gradients.setdefault(tensor.graph, set()).add(tensor.op.name)

    def compare(self, session: Any = None) -> None:
        """Compares the most frequent kind of training runs made so far, if there are any.

        The runs are those of one session, or of all.
        """
        trained: list[SessionRuns] = []
        for owner, kinds in self._kinds.items():
            if session in (None, owner):
                trained += [runs for runs in kinds.values() if runs is not None and runs.batches]
        if not trained:
            return
        runs = max(trained, key=lambda runs: len(runs.batches))
        self._kinds.clear()  # frees sessions and batches; nothing is compared after this
        if not self._training.claim():
            return
        if runs.session.sess_str:
            raise GraphError(
                "the session is one of a server",
                where="tf.compat.v1.Session",
                fix="Train in one process, without a target",
            )
        count = plural(len(runs.batches), "run")
        after = f"the variables as they are after {count} of it"
        note = f"{runs.name} was compared with {after}"
        self._training.compare(runs, runs.batches, (note,))

    def _run(
        self,
        original: Any,
        session: Any,
        handle: Any,
        targets: Any,
        fetches: Any,
        feeds: Any,
        *rest: Any,
    ) -> Any:
        """Runs a session; keeps the batches of a run that trains. Replaces ``_do_run``."""
        runs = None
        if self._is_watched() and handle is None and self._gradients.get(session.graph):
            with self._training.answering():
                fed = [reference.deref() for reference in feeds]
                runs = self._runs_of(session, targets, fetches, fed)
        if runs is None:
            return original(session, handle, targets, fetches, feeds, *rest)
        results = original(session, handle, targets, [*fetches, *runs.given], feeds, *rest)
        with self._training.answering():
            values = [np.array(feeds[tensor.ref()]) for tensor in runs.fed]
            runs.batches.append((*values, *results[len(fetches) :]))
            if len(runs.batches) >= self._training.request.steps:
                self.compare(session)
        return results[: len(fetches)]

    def _close(self, original: Any, session: Any) -> None:
        # A session may be closed because of an interrupt.
        if self._is_watched() and not self._training.is_interrupted:
            with self._training.answering():
                self.compare(session)
        original(session)

    def _is_watched(self) -> bool:
        return self._training.is_awaited and not state.is_collecting()

    def _runs_of(
        self, session: Any, targets: Tensors, fetches: Tensors, fed: Tensors
    ) -> SessionRuns | None:
        """Returns the record of runs of this kind; ``None`` if they do not train."""
        kinds = self._kinds.setdefault(session, {})
        names = _names(fed)
        key = tuple(map(_names, (targets, fetches, fed)))
        if key in kinds:
            return kinds[key]

        def sources(operation: Any) -> list[Any]:
            found = list(operation.control_inputs)
            for tensor in operation.inputs:
                if tensor.name not in names:
                    found.append(tensor.op)
            return found

        needed = list(with_ancestors([*targets, *(tensor.op for tensor in fetches)], sources))
        kinds[key] = None
        if not self._gradients[session.graph].isdisjoint(_names(needed)):
            given = _data_of(needed)
            kinds[key] = SessionRuns(session, list(fetches), list(targets), fed, given, needed)
        return kinds[key]


def _names(things: Iterable[Any]) -> frozenset[str]:
    return frozenset(thing.name for thing in things)


def _data_of(operations: Iterable[Any]) -> list[Any]:
    """Returns the tensors that data sources give.

    They are fetched beside the program's own fetches, and fed.
    """
    given = []
    for operation in operations:
        if operation.type in DATA_SOURCES:
            given += operation.outputs
    for tensor in given:
        is_inside = tensor.op._get_control_flow_context() is not None
        if is_inside or tensor.dtype.name in ("variant", "resource"):
            raise GraphError(
                f"its data come from {tensor.op.name!r}, in a branch or loop or as no arrays "
                f"({tensor.dtype.name})",
                where="Session.run",
                fix="Take the data outside of tf.cond and tf.while_loop, as dense tensors",
            )
    return given
