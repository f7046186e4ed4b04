"""Joins versions of one flat step in one graph. They share the fed tensors and nothing else.

Each version is a *side*: its nodes have the side's name as prefix, and its variables are its own,
set to the user's values before each batch. So no version sees the updates of another, and the
user's own variables are never touched.

Versions run batch by batch, without Grappler, which has run already. They run one after another,
so that only one has its tensors in memory; only the outputs of float32 are kept for the next.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.errors import GraphError, first_line
from amp_tf.graph.names import node_of
from amp_tf.graph.protos import new_graph
from amp_tf.graph.templates import rename_functions
from amp_tf.oplists.table import BEGINNINGS, UPDATED_BY, VARIABLE_READERS, WHOLE_WRITES
from amp_tf.tools.comparing.flattening import (
    OWN_SCOPE,
    UPDATE,
    FlatStep,
    Title,
    Variable,
    every_node,
    keeps_state,
    with_ancestors,
)

FLOAT32 = "float32"  #: the side that the others are measured against
AMP = "amp"  #: as amp_tf rewrites it
_SHARED = "input"
_CHANGES = np.array([1 - 2.0**-23, 1 + 2.0**-23], np.float32)  #: change a last bit, down and up


@dataclasses.dataclass(frozen=True)
class _Held:
    """A variable of the step in a joint graph; each side has its own."""

    variable: Variable  #: with its initial value
    start: Any  #: the placeholder of that value
    made: Mapping[str, Any]  #: by side, the variable of the graph

    def place(self, side: str) -> Any:
        """Returns the handle of the variable of a side; for TF1's the variable itself."""
        made = self.made[side]
        if self.variable.is_reference:
            return made._ref()
        return made.handle


class JointGraph:
    """Holds several versions of a step in one graph.

    A session feeds them and sets their variables.
    """

    def __init__(self, flat: FlatStep, sides: Mapping[str, Any]) -> None:
        import tensorflow as tf

        self._flat = flat
        self.graph = tf.Graph()
        self._inputs: dict[str, Any] = {}
        self._variables: dict[str, _Held] = {}
        self._effects: list[Any] = []
        self._keeps_state = False
        self._session: Any = None  # made by a run
        with self.graph.as_default():
            fed = {*flat.feeds, *flat.captures}
            nodes = [node for node in flat.graph.node if node.name in fed]
            shared = new_graph(node=nodes, versions=flat.graph.versions)
            tf.import_graph_def(shared, name=_SHARED)
            for name in fed:
                self._inputs[name] = self.graph.get_tensor_by_name(f"{_SHARED}/{name}:0")
            for number, (node, variable) in enumerate(flat.variables.items()):
                name = f"{OWN_SCOPE}/variable_{number}"
                self._variables[node] = _hold(variable, name, sides)
            for side, graph in sides.items():
                self._add_side(side, graph)

    def _add_side(self, side: str, graph: Any) -> None:
        """Imports a version, which reads the shared inputs and the variables of its side."""
        import tensorflow as tf

        tensors = dict(self._inputs)  # by the node whose place they take
        for node, held in self._variables.items():
            tensors[node] = held.place(side)
        version = _separate(graph, side, tensors)
        self._keeps_state |= keeps_state(version)
        inputs = {f"{node}:0": tensor for node, tensor in tensors.items()}
        # The slash keeps the scope, in which variables are already, from getting a number.
        tf.import_graph_def(version, input_map=inputs, name=f"{side}/")
        for name in self._flat.effects:
            self._effects.append(self.graph.get_operation_by_name(f"{side}/{name}"))

    def close(self) -> None:
        """Frees the session's memory; the next run creates another. Idempotent."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def tensor(self, side: str, name: str) -> Any:
        """Returns a tensor of the step, or a node's only result, in one version."""
        node, _, port = name.partition(":")
        if node in self._inputs:
            return self._inputs[node]
        if node in self._variables:
            return self._variables[node].place(side)
        return self.graph.get_tensor_by_name(f"{side}/{node}:{port or '0'}")

    def fetch(
        self,
        wanted: Any,
        number: int,
        scale: float,
        *,
        is_disturbed: bool = False,
        is_alone: bool = False,
    ) -> Any:
        """Runs a batch from the variables' initial values, and fetches tensors.

        Args:
            wanted: the tensors, a list or a mapping.
            number: the batch's.
            scale: the loss scale, if the step has one.
            is_disturbed: whether the last bits of inputs and variables are changed.
            is_alone: whether only the fetched tensors are computed. Variables that they do not
                depend on, such as an optimizer's, are not even set.

        Raises:
            GraphError: TensorFlow cannot run the step with this batch.
        """
        import tensorflow as tf

        if self._keeps_state:
            self.close()
        if self._session is None:
            self._session = tf.compat.v1.Session(graph=self.graph, config=_unoptimized())
        try:
            if is_alone:
                self._set_variables(is_disturbed, wanted)
                effects = []
            else:
                self._set_variables(is_disturbed)
                effects = self._effects
            feed = self._feed(number, scale, is_disturbed)
            return self._session.run((wanted, effects), feed)[0]
        except tf.errors.OpError as error:
            raise GraphError(
                f"a batch cannot be run ({first_line(error).rstrip('.')})",
                where="compare(batches)",
                fix="Call the step with this batch, in float32, to see whether it runs at all",
            ) from error

    def _feed(self, number: int, scale: float, is_disturbed: bool) -> dict[Any, Any]:
        """Returns what to feed for a batch."""
        values = list(self._flat.batches[number])
        if self._flat.is_scaled:
            values.append(np.float32(scale))
        given = {**dict(zip(self._flat.feeds, values, strict=True)), **self._flat.captures}
        feed = {}
        for node, value in given.items():
            if is_disturbed and value.ndim:
                value = disturbed(value)
            feed[self._inputs[node]] = value
        return feed

    def _set_variables(self, is_disturbed: bool, wanted: Any = None) -> None:
        """Sets the variables on all sides; with ``wanted`` those that these tensors depend on."""
        needed: set[Any] | None = None
        if wanted is not None:
            needed = self._operations_behind(wanted)
        resets: list[Any] = []
        values = {}
        for held in self._variables.values():
            places = {held.place(side).op for side in held.made}
            if needed is not None and needed.isdisjoint(places):
                continue
            resets += [made.initializer for made in held.made.values()]
            values[held.start] = held.variable.value
            if is_disturbed:
                values[held.start] = disturbed(held.variable.value)
        self._session.run(resets, values)

    def _operations_behind(self, wanted: Any) -> set[Any]:
        """Returns the operations that tensors depend on."""
        import tensorflow as tf

        def sources(operation: Any) -> list[Any]:
            return [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]

        operations = [tensor.op for tensor in tf.nest.flatten(wanted)]
        return set(with_ancestors(operations, sources))


def _hold(variable: Variable, name: str, sides: Iterable[str]) -> _Held:
    """Makes a variable for each side in the present graph."""
    import tensorflow as tf

    dtype = tf.as_dtype(variable.data_type)
    start = tf.compat.v1.placeholder(dtype, variable.value.shape)
    made = {}
    for side in sides:
        made[side] = tf.compat.v1.Variable(
            start,
            trainable=False,
            collections=[],
            name=f"{side}/{name}",
            use_resource=not variable.is_reference,
        )
    return _Held(variable, start, made)


def _unoptimized() -> Any:
    """Returns the options of a session that does not optimize its graph."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    return config


def _separate(graph: Any, side: str, replaced: Iterable[str]) -> Any:
    """Returns a copy of a version that shares no function, loop frame or variable with others.

    Nothing in it waits for the nodes that are replaced by tensors of the joint graph.
    """
    version = copy.deepcopy(graph)
    # Functions get names of their own.
    names = {}
    for function in version.library.function:
        name = function.signature.name
        names[name] = f"{side}__{name}"
        function.signature.name = names[name]
    for gradient in version.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    for node in every_node(version):
        rename_functions(node, names)
        node.attr.pop("_class", None)  # the nodes beside which it is to be placed
    # Loop frames, too; and nothing waits for what is replaced.
    needless = {f"^{name}" for name in replaced}
    for node in version.node:
        if not needless.isdisjoint(node.input):
            node.input[:] = [text for text in node.input if text not in needless]
        if "frame_name" in node.attr:
            node.attr["frame_name"].s = f"{side}/".encode() + node.attr["frame_name"].s
    return version


def written_variables(flat: FlatStep) -> list[str]:
    """Returns the float32 variables that the step may write."""
    writers = _writers(flat)
    names = []
    for name, variable in flat.variables.items():
        if name in writers and variable.value.dtype == np.float32:
            names.append(name)
    return names


def _writers(flat: FlatStep) -> dict[str, list[Any]]:
    """Returns the nodes that may write a variable: those that do not only read it."""
    found: dict[str, list[Any]] = {}
    for node in flat.graph.node:
        if node.op in VARIABLE_READERS:
            continue
        for place, text in enumerate(node.input):
            name = node_of(text)
            if name in flat.variables and _may_write(flat.variables[name], node.op, place):
                found.setdefault(name, []).append(node)
    return found


def _may_write(variable: Variable, op: str, place: int) -> bool:
    """Tells whether an op may write the variable that is its input at a place.

    A variable of TF1's is written only through an input that takes a reference.
    """
    if not variable.is_reference:
        return True
    arguments = _arguments(op)
    return place < len(arguments) and bool(arguments[place].is_ref)


def _arguments(op: str) -> Any:
    """Returns the definitions of an op's inputs."""
    from tensorflow.python.framework import op_def_registry

    return getattr(op_def_registry.get(op), "input_arg", ())


def disturbed(value: np.ndarray) -> np.ndarray:
    """Changes the last bit of each float32 number, up or down.

    Whole numbers, such as masks, stay.
    """
    if value.dtype != np.float32:
        return value
    random = np.frombuffer(np.random.default_rng(value.size).bytes(-(-value.size // 8)), np.uint8)
    is_up = np.unpackbits(random, count=value.size).reshape(value.shape)
    changed = np.multiply(value, _CHANGES[is_up], out=np.empty_like(value))
    np.copyto(changed, value, where=value == np.rint(value))
    return np.asarray(changed)


def titles_of(flat: FlatStep) -> Sequence[Title]:
    """Returns the title of each floating-point output.

    Outputs are results, and variables that the step writes. Variables that have one name, such as
    "b", are numbered in the order in which the step uses them.
    """
    titles = [title for title, _ in flat.outputs]
    names = [flat.variables[node].name for node in written_variables(flat)]
    for place, name in enumerate(names):
        count = names.count(name)
        if count > 1:
            name = f"{name} ({names[: place + 1].count(name)} of {count})"
        titles.append(Title(UPDATE, name))
    return titles


class RunnableStep(JointGraph):
    """One version of a step, in a graph and a session of its own."""

    def __init__(self, flat: FlatStep, graph: Any) -> None:
        import tensorflow as tf

        super().__init__(flat, {FLOAT32: graph})
        self._results = [self.tensor(FLOAT32, tensor) for _, tensor in flat.outputs]
        self._written = written_variables(flat)
        self._changes: dict[str, Any] = {}  # tensors that change variables
        self._after: dict[str, Any] = {}  # tensors that read the other variables
        changes = _changes(flat)
        with self.graph.as_default():
            for node in self._written:
                if node in changes:
                    name, place = changes[node]
                    operation = self.graph.get_operation_by_name(f"{FLOAT32}/{name}")
                    self._changes[node] = tf.cast(operation.inputs[place], tf.float32)
                else:
                    self._after[node] = self._variables[node].made[FLOAT32].value()

    def run(self, number: int, scale: float, *, is_disturbed: bool = False) -> list[np.ndarray]:
        """Returns the outputs, in the order of :func:`titles_of`.

        Arguments: as for :meth:`JointGraph.fetch`.
        """
        results, changes = self.fetch(
            (self._results, self._changes), number, scale, is_disturbed=is_disturbed
        )
        for node, value in self._session.run(self._after).items():
            before = self._flat.variables[node].value
            if is_disturbed:
                before = disturbed(before)
            changes[node] = value - before
        return [*results, *(changes[node] for node in self._written)]


def _changes(flat: FlatStep) -> dict[str, tuple[str, int]]:
    """Returns the changes of the variables that are written once.

    Each is given as the node that writes it and the number of its input with the change. The
    change is a gradient, perhaps times a rate. With a rate of 1e-9 the variable itself would
    not show it. Tensors behind branches and in loops cannot be fetched, so there the variables are
    compared.
    """
    nodes = {node.name: node for node in flat.graph.node}
    if any(node.op in BEGINNINGS for node in nodes.values()):
        return {}
    found = {}
    for variable, (write, *others) in _writers(flat).items():
        if others or node_of(write.input[0]) != variable:
            continue
        if write.op in WHOLE_WRITES:  # variable.assign(variable - change)
            update = nodes[node_of(write.input[1])]
            if update.op in UPDATED_BY and _reads(update, variable, nodes):
                found[variable] = update.name, 1
            continue
        names = [argument.name for argument in _arguments(write.op)]
        for name in ("grad", "delta", "value"):
            if name in names:
                found[variable] = write.name, names.index(name)
                break
    return found


def _reads(update: Any, variable: str, nodes: Mapping[str, Any]) -> bool:
    """Tells whether the first input of a node is a variable's value."""
    read = nodes.get(node_of(update.input[0]))
    return read is not None and list(read.input[:1]) == [variable]
