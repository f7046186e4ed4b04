"""Joins versions of one flat step in one graph: they share what is fed, and nothing else.

Each version is a *side*: its nodes have the side's name as prefix, and its variables are its own,
set to the user's values before each batch. So no version sees the updates of another, and the
user's own variables are never touched.

Versions run batch by batch, without Grappler, which has run already, or by XLA where the program
runs the step so. They run one after another, so that only one has its tensors in memory; only the
outputs of float32 are kept for the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.oplists.table import BEGINNINGS, UPDATED_BY, VARIABLE_READERS, WHOLE_WRITES
from amp_tf.tools.comparing.flattening import (
    UPDATE,
    FlatStep,
    keeping_state,
    make_stateless,
    reached,
)

FLOAT32 = "float32"  #: the side that is right
AMP = "amp"  #: as amp_tf rewrites it
_SHARED = "input"


def join(step: FlatStep, sides: Mapping[str, Any]) -> Any:
    """The joint GraphDef of some sides, each a version of the step; float32 comes first."""
    from tensorflow.core.framework import graph_pb2

    joint = graph_pb2.GraphDef(versions=step.graph.versions)
    fed = {*step.feeds, *step.captures}
    constants = {
        node.name: node for node in step.graph.node if node.op == "Const" and not node.input
    }
    for side, graph in sides.items():
        shared = {name: f"{_SHARED}/{name}" for name in fed}
        if side != FLOAT32:
            same = [
                node.name
                for node in graph.node
                if node.name in constants and node == constants[node.name]
            ]
            shared.update((name, f"{FLOAT32}/{name}") for name in same)
        functions = {
            called.signature.name: f"{side}__{called.signature.name}"
            for called in graph.library.function
        }
        for function in graph.library.function:
            added = joint.library.function.add()
            added.CopyFrom(function)
            added.signature.name = functions[function.signature.name]
            for node in added.node_def:
                _rename_functions(node, functions)
        for gradient in graph.library.gradient:
            both = gradient.function_name, gradient.gradient_func
            name, of = (functions.get(called, called) for called in both)
            joint.library.gradient.add(function_name=name, gradient_func=of)
        for node in graph.node:
            if node.name in shared and (side != FLOAT32 or node.name not in fed):
                continue
            added = joint.node.add()
            added.CopyFrom(node)
            added.name = shared.get(node.name, f"{side}/{node.name}")
            for place, text in enumerate(node.input):
                mark = "^" if text.startswith("^") else ""
                source, colon, port = text.removeprefix("^").partition(":")
                added.input[place] = f"{mark}{shared.get(source, f'{side}/{source}')}{colon}{port}"
            if (variable := step.variables.get(node.name)) is not None:
                if not variable.is_reference:  # whose node is a variable already
                    added.op = "VarHandleOp"
                    added.attr.clear()
                    added.attr["dtype"].type = variable.data_type
                    added.attr["shape"].shape.SetInParent()
                    for size in variable.value.shape:
                        added.attr["shape"].shape.dim.add().size = size
                added.attr["shared_name"].s = added.name.encode()
            added.attr.pop("_class", None)  # with which nodes it wants to be placed
            if "frame_name" in added.attr:
                added.attr["frame_name"].s = f"{side}/".encode() + added.attr["frame_name"].s
            _rename_functions(added, functions)
    make_stateless(joint)
    return joint


def tensor_name(side: str, name: str, step: FlatStep) -> str:
    """The name in the joint graph of one of the step's tensors, or of a node's only result."""
    node, _, port = name.partition(":")
    is_shared = node in step.feeds or node in step.captures
    return f"{_SHARED if is_shared else side}/{node}:{port or '0'}"


def _rename_functions(node: Any, functions: Mapping[str, str]) -> None:
    for value in node.attr.values():
        for called in (value.func, *value.list.func) if value.HasField("func") else value.list.func:
            called.name = functions.get(called.name, called.name)
    node.op = functions.get(node.op, node.op)


_CHANGES = np.array(
    [1 - 2.0**-23, 1 + 2.0**-23], np.float32
)  #: factors that change a number's last bit, down and up
_AT_ONCE = 2**25  #: bytes of disturbed variables that are set at once


class JointGraph:
    """Several versions of a step in one graph, with a session that feeds them and sets their
    variables.

    Where XLA is to compile the only side, ``compiled`` are the tensors that are wanted; then no
    other ones are there.
    """

    def __init__(self, flat: FlatStep, sides: dict[str, Any], compiled: Sequence[str] = ()) -> None:
        import tensorflow as tf

        self._flat, self._sides = flat, list(sides)
        self.graph = tf.Graph()
        with self.graph.as_default():
            joint = join(flat, sides)
            names = [f"{side}/{name}" for side in sides for name in flat.effects]
            self._compiled: dict[str, Any] = {}
            if compiled:
                given = (*flat.feeds, *flat.captures, *flat.variables)
                inputs, results = (
                    [tensor_name(FLOAT32, name, flat) for name in some]
                    for some in (given, compiled)
                )
                self._compiled = dict(
                    zip(results, import_compiled(joint, inputs, results, names), strict=True)
                )
            else:
                tf.import_graph_def(joint, name="")
            self._starts: dict[str, Any] = {}
            self._resets: dict[str, list[Any]] = {}
            for node, variable in flat.variables.items():
                start = tf.compat.v1.placeholder(
                    tf.as_dtype(variable.data_type), variable.value.shape
                )
                places = [self.tensor(side, node) for side in sides]
                self._starts[node] = start
                self._resets[node] = (
                    [tf.raw_ops.Assign(ref=place, value=start).op for place in places]
                    if variable.is_reference
                    else [
                        tf.raw_ops.AssignVariableOp(resource=place, value=start) for place in places
                    ]
                )
        self._effects = (
            [] if compiled else [self.graph.get_operation_by_name(name) for name in names]
        )
        self._keeps_state = bool(keeping_state(joint))
        self._session: Any = None  # made by a run
        self._writes = bool(written(flat, of_all=True))
        self._held: bool | None = (
            None  # whether the variables hold disturbed values; None if unknown
        )

    def close(self) -> None:
        """Frees the session's memory; the next run creates another. Idempotent."""
        if self._session is not None:
            self._session.close()
        self._session, self._held = None, None

    def tensor(self, side: str, name: str) -> Any:
        """A tensor of the step, in one version."""
        full_name = tensor_name(side, name, self._flat)
        return (
            self._compiled[full_name]
            if full_name in self._compiled
            else self.graph.get_tensor_by_name(full_name)
        )

    def fetch(
        self,
        wanted: Any,
        number: int,
        scale: float,
        *,
        is_disturbed: bool = False,
        is_alone: bool = False,
    ) -> Any:
        """Runs a batch, with a loss scale if the step has one, from the variables' initial values,
        and fetches tensors.

        Where it ``is_disturbed``, inputs and variables differ in their last bit. Where it
        ``is_alone``, only the fetched tensors are computed: variables that they do not depend on,
        such as an optimizer's, are not even set. Raises a GraphError where TensorFlow cannot run
        the step with this batch.
        """
        import tensorflow as tf

        change = disturbed if is_disturbed else lambda value: value
        if self._keeps_state:
            self.close()
        if self._session is None:
            config = tf.compat.v1.ConfigProto(
                allow_soft_placement=True
            )  # and the graph is not optimized
            config.graph_options.rewrite_options.disable_meta_optimizer = True
            config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
            self._session = tf.compat.v1.Session(graph=self.graph, config=config)
        try:
            if self._writes or self._held is not is_disturbed:
                chosen = list(self._flat.variables)
                if is_alone:  # those that are wanted in any version
                    operations = [tensor.op for tensor in tf.nest.flatten(wanted)]
                    needed = reached(
                        operations,
                        lambda one: [*(given.op for given in one.inputs), *one.control_inputs],
                    )
                    names = {operation.name for operation in needed}
                    chosen = [
                        node
                        for node in chosen
                        if any(f"{side}/{node}" in names for side in self._sides)
                    ]
                while chosen:  # few at once, because those that are disturbed are copies
                    start: dict[Any, Any] = {}
                    resets = []
                    while chosen and sum(value.nbytes for value in start.values()) < _AT_ONCE:
                        node = chosen.pop()
                        start[self._starts[node]] = change(self._flat.variables[node].value)
                        resets.append(self._resets[node])
                    self._session.run(resets, start)
                self._held = is_disturbed if not is_alone else None
            effects = [] if is_alone else self._effects
            values = [
                *self._flat.batches[number],
                *([np.float32(scale)] if self._flat.is_scaled else []),
            ]
            given = {**dict(zip(self._flat.feeds, values, strict=True)), **self._flat.captures}
            feed = {
                tensor_name(FLOAT32, node, self._flat): change(value) if value.ndim else value
                for node, value in given.items()
            }
            return self._session.run((wanted, effects), feed)[0]
        except tf.errors.OpError as error:
            what = f"a batch cannot be run ({_why(error.message)})"
            fix = "Call the step with this batch, in float32, to see whether it runs at all"
            raise GraphError(what, where="compare(batches)", fix=fix) from error

    def read(self, wanted: Any) -> Any:
        """Fetches tensors that depend on variables only, such as their values after a batch."""
        return self._session.run(wanted)


def _why(message: str) -> str:
    """TensorFlow's message, without the frame that it puts around errors in graphs."""
    message = message.removeprefix("Graph execution error:")
    _, framed, said = message.rpartition("\nNode:")  # its name, and then what happened
    lines = [line for line in said.splitlines()[bool(framed) :] if line.strip()]
    return (lines or [message])[0].strip().rstrip(".")


def written(flat: FlatStep, *, of_all: bool = False) -> list[str]:
    """The float32 variables, or all of them, that have readers other than plain reads."""
    from tensorflow.python.framework import op_def_registry

    def may_write(op: str, place: int, text: str) -> bool:
        """Whether an op may write the variable that it reads; one of TF1's only through an input
        that takes it.
        """
        if text not in flat.variables or not flat.variables[text].is_reference:
            return True
        arguments = getattr(op_def_registry.get(op), "input_arg", ())
        return place < len(arguments) and bool(arguments[place].is_ref)

    used = {
        text.partition(":")[0]
        for node in flat.graph.node
        if node.op not in VARIABLE_READERS
        for place, text in enumerate(node.input)
        if may_write(node.op, place, text)
    }
    return [
        node
        for node, kept in flat.variables.items()
        if node in used and (of_all or kept.value.dtype == np.float32)
    ]


def disturbed(value: np.ndarray) -> np.ndarray:
    """The same numbers with the last bit of each float32 changed, up or down; whole numbers, such
    as masks, stay.
    """
    if value.dtype != np.float32:
        return value
    random = np.frombuffer(np.random.default_rng(value.size).bytes(-(-value.size // 8)), np.uint8)
    is_up = np.unpackbits(random, count=value.size).reshape(value.shape)
    changed = np.multiply(value, _CHANGES[is_up], out=np.empty_like(value))
    np.copyto(changed, value, where=value == np.rint(value))
    return np.asarray(changed)


def output_names(flat: FlatStep) -> list[tuple[str, str]]:
    """Kind and name of each floating-point result, and of each floating-point variable that the
    step writes.

    Of variables that have one name, such as "b", each has its number, in the order in which the
    step uses them.
    """
    results = [(kind, name) for kind, name, _ in flat.outputs]
    names = [flat.variables[node].name for node in written(flat)]
    numbered = (
        f"{name} ({names[:place].count(name)} of {names.count(name)})"
        if names.count(name) > 1
        else name
        for place, name in enumerate(names, 1)
    )
    return [*results, *((UPDATE, name) for name in numbered)]


class RunnableStep(JointGraph):
    """One version of a step, in a graph and a session of its own; XLA may compile it."""

    def __init__(self, flat: FlatStep, graph: Any, *, is_compiled: bool = False) -> None:
        import tensorflow as tf

        results = [tensor for _, _, tensor in flat.outputs]
        super().__init__(flat, {FLOAT32: graph}, results if is_compiled else ())
        self._results = [self.tensor(FLOAT32, name) for name in results]
        self._written, changes = written(flat), {} if is_compiled else _changes(flat)
        self._changes, self._after = (
            {},
            {},
        )  # tensors that change variables, and of the others those that read them
        with self.graph.as_default():
            for node in self._written:
                if node in changes:
                    name, place = changes[node]
                    operation = self.graph.get_operation_by_name(f"{FLOAT32}/{name}")
                    self._changes[node] = tf.cast(operation.inputs[place], tf.float32)
                    continue
                variable = self.tensor(FLOAT32, node)
                self._after[node] = (
                    tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float32)
                    if variable.dtype == tf.resource
                    else tf.identity(variable)
                )

    def run(self, number: int, scale: float, *, is_disturbed: bool = False) -> list[np.ndarray]:
        """The outputs, in the order of :func:`output_names`; arguments as for
        :meth:`JointGraph.fetch`.
        """
        results, changes = self.fetch(
            (self._results, self._changes), number, scale, is_disturbed=is_disturbed
        )
        change = disturbed if is_disturbed else lambda value: value
        for node, value in self.read(self._after).items():
            changes[node] = value - change(self._flat.variables[node].value)
        return [*results, *(changes[node] for node in self._written)]


def _changes(flat: FlatStep) -> dict[str, tuple[str, int]]:
    """For each variable that is written once: the node that changes it, and which input of it is
    the change.

    That is a gradient, perhaps times a rate: where the rate is 1e-9, nothing of it is seen in the
    variable. Behind branches and in loops a tensor cannot be fetched, so there variables are
    compared.
    """
    from tensorflow.python.framework import op_def_registry

    nodes = {node.name: node for node in flat.graph.node}
    if any(node.op in BEGINNINGS for node in flat.graph.node):
        return {}
    writes: dict[str, list[Any]] = {}
    for node in flat.graph.node:
        first = node.input[0].partition(":")[0] if node.input else ""
        if first in flat.variables and node.op not in VARIABLE_READERS:
            writes.setdefault(first, []).append(node)
    found = {}
    for variable, (write, *others) in writes.items():
        if write.op in WHOLE_WRITES:  # variable.assign(variable - change)
            write = nodes[write.input[1].partition(":")[0]]
            before = nodes.get(write.input[0].partition(":")[0]) if write.op in UPDATED_BY else None
            reads = before is not None and [*before.input[:1]] == [variable]
            place = 1 if reads else None
        else:
            arguments = getattr(op_def_registry.get(write.op), "input_arg", ())
            names = [argument.name for argument in arguments]
            place = next(
                (names.index(name) for name in ("grad", "delta", "value") if name in names), None
            )
        if place is not None and not others:
            found[variable] = write.name, place
    return found


def import_compiled(
    graph: Any, inputs: Sequence[str], results: Sequence[str], effects: Sequence[str]
) -> list[Any]:
    """Imports a GraphDef into the present graph; all but its inputs becomes one call, which XLA
    compiles as it runs.

    XLA computes other numbers than TensorFlow's kernels: it leaves out a rounding to 16 bit where
    what follows is float32 again, and on CPUs computes 16-bit sums in float32. What it gives in 16
    bit is compared with what it gives in float32. ``inputs`` are the names of its placeholders and
    variables' handles, which they keep; ``effects`` are nodes that must run, too. Returns the
    tensors that are wanted.
    """
    import tensorflow as tf

    parts = [
        tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library) for _ in range(2)
    ]
    outer = {name.removesuffix(":0") for name in inputs}
    needless = {f"^{name}" for name in outer}
    for node in graph.node:
        added = parts[node.name in outer].node.add()
        added.CopyFrom(node)
        added.input[:] = [text for text in node.input if text not in needless]
    body, outside = parts
    given = tf.import_graph_def(outside, return_elements=[*inputs], name="")
    computed = [name for name in results if name not in inputs]

    def step(*arguments: Any) -> list[Any]:
        of_name = dict(zip(inputs, arguments, strict=True))
        found = tf.import_graph_def(body, of_name, [*computed, *effects], name="")
        of_name |= zip(computed, found, strict=False)
        with tf.control_dependencies(found[len(computed) :]):
            return [tf.identity(of_name[name]) for name in results]

    return list(tf.function(step, jit_compile=True, autograph=False)(*given))
