"""Finds the variables of a SavedModel, and those that may be stored in 16 bit.

A variable has many *places*: nodes with its handle, arguments of functions, objects, a key of the
checkpoint. Places of one variable are linked by calls, captures of functions, nodes that restore
it, and assignments of one variable's value to another. Linked places have one type. A variable is
stored in 16 bit if all of this holds.

- It is float32, and the checkpoint has it whole.
- A cast to 16 bit reads it, perhaps through a gather or a reshape.
- Its other readers can have another type: they save it, or ask for its shape.
- It is written only by nodes that restore or initialize it.
- None of its values becomes infinite.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import connected
from amp_tf.graph.attributes import ARG_OP, value_of
from amp_tf.graph.datatypes import Node, Port
from amp_tf.graph.edits import Reader
from amp_tf.graph.templates import referenced
from amp_tf.graph.view import GraphView
from amp_tf.offline.bodies import Body, Place, read_bodies
from amp_tf.offline.reading import Checkpoint
from amp_tf.oplists import table
from amp_tf.precision import Precision
from amp_tf.reporting.weights import Kept, StoredVariable

_PASSING = table.UNCHANGED | table.PICKING
#: Reads of variables with values that become infinite in a 16-bit type: the names of nodes, by
#: function, ``""`` for the graph itself.
BeyondRange = Mapping[str, Container[str]]
_F16 = {datatypes.BFLOAT16: Precision.BFLOAT16, datatypes.HALF: Precision.FLOAT16}
_KEY = "key"  # the kind of the places in a checkpoint


class Spot(NamedTuple):
    """A variable, by its handle's place, in a body through which it is followed."""

    handle: Place
    body: Body


class Change(NamedTuple):
    """A change of a body that a variable in 16 bit needs.

    Attributes:
        kind: ``unit``, ``argument`` or ``result``, which becomes 16 bit; ``cast``, a cast to 16
            bit, which goes; ``initial``, a node that assigns a float32 value, which has to be cast;
            ``read``, a node that gives the variable's value, which stays as it is.
        number: the number of the unit, argument, result or node.
    """

    body: Body
    kind: str
    number: int


Why = tuple[Kept, str]  #: the reason for float32, and the node that it names
Changes = list[tuple[Change, int]]  # each with the ``DataType`` number of its variable


class VariableSearch:
    """Finds variables, and the nodes that read and write them.

    Args:
        bodies: all bodies of a model, by the number of their MetaGraph and their name.
    """

    def __init__(self, bodies: Mapping[tuple[int, str], Body]) -> None:
        self._bodies = bodies
        self._links: list[tuple[Place, Place]] = []
        self._kept: dict[Place, Why] = {}
        self._changes: dict[Place, list[Change]] = collections.defaultdict(list)
        self._objects: dict[Place, Any] = {}

    def follow_handles(self, body: Body) -> None:
        """Follows the handles of variables through a body."""
        view = body.view
        for node in view.nodes_with(table.VARIABLE_HANDLES):
            shared = value_of(view.protos[node], "shared_name").s or view.names[node].encode()
            place = body.place(node)
            self._links.append((place, ("shared", body.meta, shared)))
            held = next(unit for unit in view.units(node) if view.slot(node, unit).attr == "dtype")
            self._change(Spot(place, body), "unit", held)
        columns = ("src_node", "src_port", "dst_node", "dst_position")
        for source, port, node, position in view.edges.rows(*columns):
            handle = body.handle(source, port)
            if handle is not None:
                self._follow_handle(Spot(handle, body), source, (node, position))

    def _follow_handle(self, spot: Spot, source: Node, reader: Reader) -> None:
        """Follows a handle to a node that reads it."""
        handle, body = spot
        view = body.view
        node, position = reader
        op = view.ops[node]
        if op in table.VARIABLE_VALUES:
            if view.names[node] in body.preserved:
                self._keep(spot, Kept.READ, node)
                return
            self._change(spot, "read", node)
            self._change(spot, "unit", view.output_unit(node, 0))
            self._follow_value(spot, node)
            return
        if op in table.VARIABLE_WRITES and position == 0:
            self._change(spot, "unit", view.input_unit(node, 1))
            self._follow_back(spot, node)
            return
        callees = self._callees(body, node, position)
        for callee, argument in callees:
            self._links.append((handle, callee.place(argument)))
        if callees or op in table.VARIABLE_QUESTIONS | table.UNCHANGED:
            return
        if not body.gives_back(source, node):
            why = Kept.HANDED_ON
            if op in table.STORING:
                why = Kept.WRITTEN
            self._keep(spot, why, node)

    def link_objects(self, meta: int, objects: Any, checkpoint: Checkpoint) -> None:
        """Links the objects of a MetaGraph with their keys and with the functions' captures."""
        for number, node in enumerate(objects.nodes):
            place = ("object", meta, number)
            if node.HasField("variable"):
                self._objects[place] = node.variable
                if node.variable.experimental_distributed_variable_components:
                    self._kept[place] = Kept.DISTRIBUTED, ""
        for number, key in checkpoint.keys_of(objects):
            self._links.append((("object", meta, number), (_KEY, key)))
        for name, function in objects.concrete_functions.items():
            if body := self._bodies.get((meta, name)):
                arguments = body.view.nodes_with((ARG_OP,))
                captured = arguments[len(arguments) - len(function.bound_inputs) :]
                for number, argument in zip(function.bound_inputs, captured, strict=True):
                    self._links.append((("object", meta, number), body.place(argument)))

    def judge(
        self, checkpoint: Checkpoint, beyond: Sequence[BeyondRange]
    ) -> tuple[list[StoredVariable], dict[Body, Changes]]:
        """Decides the stored type of each float32 tensor of the checkpoint.

        The objects of a variable that is stored in 16 bit get that type.

        Args:
            checkpoint: the model's checkpoint.
            beyond: the result of :func:`find_beyond_range`, before the graphs were converted.

        Returns:
            All variables, and the changes of each body.

        Raises:
            FileError: values cannot be read.
        """
        unseen = dict(checkpoint.shapes)
        variables = []
        decided: dict[Body, Changes] = collections.defaultdict(list)
        for group, keys in self._variables(checkpoint):
            changes = self._changes_of(group)
            objects = [self._objects[place] for place in group if place in self._objects]
            data_type, why = self._judge_one(group, changes, beyond)
            if why is None and not all(checkpoint.fits(key, data_type) for key in keys):
                why = Kept.RANGE, ""
            precision = Precision.FLOAT32
            if why is None:
                precision = _F16[data_type]
                for change in changes:
                    decided[change.body].append((change, data_type))
                for variable in objects:
                    variable.dtype = data_type
            for key in keys:
                name = objects[0].name if objects else key
                shape = unseen.pop(key)
                variables.append(StoredVariable(name, key, shape, precision, *(why or ())))
        # The other tensors of the checkpoint.
        reason = Kept.UNREAD
        if any(each.view.nodes_with(table.REFERENCE_VARIABLES) for each in self._bodies.values()):
            reason = Kept.REFERENCE
        for key, shape in unseen.items():
            variables.append(StoredVariable(key, key, shape, Precision.FLOAT32, reason))
        return variables, decided

    def _judge_one(
        self,
        group: Sequence[Place],
        changes: Sequence[Change],
        beyond: Sequence[BeyondRange],
    ) -> tuple[int, Why | None]:
        """Returns the 16-bit type of a variable, and why it stays float32, ``None`` if it need not.

        Args:
            group: the places of the variable.
            changes: the changes that it needs.
            beyond: as for :meth:`judge`.
        """
        types = set()
        for change in changes:
            view = change.body.view
            if change.kind == "cast":
                types.add(view.protos[change.number].attr["DstT"].type)
            elif change.kind == "read":
                too_large = beyond[change.body.meta].get(view.function, ())
                if view.names[change.number] in too_large:
                    return datatypes.INVALID, (Kept.RANGE, "")
        for place in group:
            if place in self._kept:
                return datatypes.INVALID, self._kept[place]
        if len(types) != 1:
            return datatypes.INVALID, (Kept.UNREAD, "")
        return types.pop(), None

    def find_beyond_range(
        self, checkpoint: Checkpoint, data_type: int
    ) -> Iterator[tuple[Body, str]]:
        """Yields the reads of variables with a value that becomes infinite in 16 bit.

        A read is a body and the name of a node.

        Raises:
            FileError: values cannot be read.
        """
        for group, keys in self._variables(checkpoint):
            reads = [change for change in self._changes_of(group) if change.kind == "read"]
            if reads and not all(checkpoint.fits(key, data_type) for key in keys):
                for read in reads:
                    yield read.body, read.body.view.names[read.number]

    def _variables(self, checkpoint: Checkpoint) -> Iterator[tuple[Sequence[Place], list[str]]]:
        """Yields the places and keys of each variable that the checkpoint has whole in float32."""
        for group in connected(itertools.chain.from_iterable(self._links), self._links):
            keys = [str(place[1]) for place in group if place[0] == _KEY]
            if keys and checkpoint.shapes.keys() >= {*keys}:
                yield group, keys

    def _changes_of(self, group: Sequence[Place]) -> list[Change]:
        changes: list[Change] = []
        for place in group:
            changes += self._changes[place]
        return changes

    def _change(self, spot: Spot, kind: str, number: int) -> None:
        self._changes[spot.handle].append(Change(spot.body, kind, number))

    def _keep(self, spot: Spot, why: Kept, node: Node) -> None:
        view = spot.body.view
        name = view.names[node]
        if view.function:
            name = f"{view.function}/{name}"
        self._kept.setdefault(spot.handle, (why, name))

    def _callees(self, body: Body, node: Node, position: int) -> list[tuple[Body, int]]:
        """Returns the functions that get an input of a node, and the argument that it is.

        There are none if one of them is not known.
        """
        op = body.view.ops[node]
        argument = position - table.HANDING_OVER.get(op, position + 1)
        if argument < 0:
            return []
        found = []
        for name in referenced(body.view.protos[node]):
            callee = self._bodies.get((body.meta, name))
            if callee is not None:
                found.append((callee, argument))
            elif name != op:
                return []
        return found

    def _follow_value(self, spot: Spot, node: Node, port: Port = 0) -> None:
        """Follows the value of a variable to its readers."""
        view = spot.body.view
        for reader, position in view.readers(node, port):
            if _narrows(view, reader):
                self._change(spot, "cast", reader)
            else:
                self._follow_to(spot, node, (reader, position))

    def _follow_to(self, spot: Spot, node: Node, place: Reader) -> None:
        """Follows the value of a variable, which a node gives, to a reader that is no cast."""
        handle, body = spot
        view = body.view
        reader, position = place
        op = view.ops[reader]
        unit = view.input_unit(reader, position)
        is_saved = op in table.CHECKPOINT_WRITES and position >= table.CHECKPOINT_WRITES[op]
        if is_saved or op in table.SHAPE_QUESTIONS:
            self._change(spot, "unit", unit)
            return
        if op in table.VARIABLE_WRITES:
            written = body.handle(*view.inputs(reader)[0])
            if written is not None:
                self._links.append((handle, written))
                return
        is_passing = op in _PASSING and position == 0 and view.names[reader] not in body.preserved
        if is_passing and unit == view.output_unit(reader, 0):
            self._change(spot, "unit", unit)
            for port in range(len(view.signatures[reader].outputs)):
                self._follow_value(spot, reader, port)
            return
        if body.gives_back(node, reader):
            self._change(spot, "result", node)
            return
        callees = self._callees(body, reader, position)
        if not callees or not all(callee.is_called_once for callee, _ in callees):
            self._keep(spot, Kept.READ, reader)
            return
        self._change(spot, "unit", unit)
        for callee, argument in callees:
            inside = Spot(handle, callee)
            self._change(inside, "read", argument)
            self._change(inside, "argument", argument)
            self._follow_value(inside, argument)
        if table.is_loop(op):
            self._follow_value(spot, reader, position)

    def _follow_back(self, spot: Spot, writer: Node) -> None:
        """Follows the value that a node assigns to where it comes from."""
        handle, body = spot
        view = body.view
        passing = []
        node, port = view.inputs(writer)[1]
        while view.ops[node] in _PASSING:
            passing.append(node)
            node, port = view.inputs(node)[0]
        if view.ops[node] in table.VARIABLE_VALUES:
            return  # that variable's value is followed to here
        if view.ops[node] not in table.CHECKPOINT_READS:
            if view.function:
                self._keep(spot, Kept.WRITTEN, writer)
            else:
                self._change(spot, "initial", writer)
            return
        counts = [len(view.readers(node, port)), *(len(view.readers(each)) for each in passing)]
        if set(counts) != {1}:
            self._keep(spot, Kept.WRITTEN, writer)
            return
        names, slices = (_strings(view.protos[source]) for source, _ in view.inputs(node)[1:])
        if port >= min(len(names), len(slices)) or slices[port]:
            self._keep(spot, Kept.PARTITIONED, writer)
            return
        self._links.append((handle, (_KEY, names[port].decode())))
        for each in passing:
            self._change(spot, "unit", view.input_unit(each, 0))
        self._change(spot, "unit", view.output_unit(node, port))


def _narrows(view: GraphView, node: Node) -> bool:
    """Tells whether a node casts to 16 bit, and rounds."""
    if view.ops[node] not in table.CASTS:
        return False
    cast = view.protos[node]
    return cast.attr["DstT"].type in _F16 and not value_of(cast, "Truncate").b


def _strings(constant: Any) -> Sequence[bytes]:
    """Returns the values of a Const node of strings; none of another node."""
    if constant is None:
        return ()
    found: Sequence[bytes] = value_of(constant, "value").tensor.string_val
    return found


def search_variables(
    model: Any, checkpoint: Checkpoint, preserved: Sequence[frozenset[str]]
) -> VariableSearch:
    """Searches a ``SavedModel`` proto for all variables."""
    found: list[Body] = []
    for number, nodes in enumerate(preserved):
        found += read_bodies(number, model.meta_graphs[number], nodes)
    search = VariableSearch({(body.meta, body.view.function): body for body in found})
    for body in found:
        search.follow_handles(body)
    for number, meta in enumerate(model.meta_graphs):
        search.link_objects(number, meta.object_graph_def, checkpoint)
    return search


def find_beyond_range(
    model: Any, checkpoint: Checkpoint, preserved: Sequence[frozenset[str]], precision: Precision
) -> list[dict[str, set[str]]]:
    """Finds the reads of variables with values that become infinite in a 16-bit type.

    Args:
        model: the ``SavedModel`` proto.
        checkpoint: its checkpoint.
        preserved: for each MetaGraph, the nodes of its graph whose results somebody fetches.
        precision: the 16-bit type.

    Returns:
        The reads of each MetaGraph.

    Raises:
        GraphError: a graph is broken.
        FileError: the checkpoint cannot be read.
    """
    found: list[dict[str, set[str]]] = [{} for _ in model.meta_graphs]
    if not checkpoint.shapes:
        return found
    search = search_variables(model, checkpoint, preserved)
    for body, name in search.find_beyond_range(checkpoint, precision.data_type):
        found[body.meta].setdefault(body.view.function, set()).add(name)
    return found
