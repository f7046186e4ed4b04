"""Finds the variables of a converted SavedModel that can be stored in 16 bit: half the file, and no
casts of weights.

A variable stands in many places: nodes with its handle, arguments of functions, objects, a key of
the checkpoint. Places of the same variable are linked by calls, by what functions capture, by what
a restore assigns, and where one variable is assigned another's value; what is linked has one type.
It is stored in 16 bit if

- it is float32, and the checkpoint has it whole;
- a cast to 16 bit reads it, perhaps through a gather or a reshape;
- what else reads it can have another type: what saves it, and what asks for its shape;
- nothing writes it but what restores or initializes it;
- no value of it becomes infinite.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from amp_tf.errors import GraphError, RewriteError
from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import connected
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.editor import apply_to_function, apply_to_graph
from amp_tf.graph.edits import Edits, NewNode, Reop, Rewire, attribute
from amp_tf.graph.names import FreshNames
from amp_tf.graph.reader import RETVAL_OP, read_function, read_graph
from amp_tf.graph.templates import Templates, find_loop_bodies, referenced
from amp_tf.graph.view import GraphView
from amp_tf.offline.reading import Checkpoint
from amp_tf.oplists import table
from amp_tf.precision import Precision
from amp_tf.reporting.reports import Kept, StoredVariable, Weights

_PASSING = table.UNCHANGED | table.PICKING
_F16 = {datatypes.BFLOAT16: Precision.BFLOAT16, datatypes.HALF: Precision.FLOAT16}


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """A graph or a function of a model."""

    meta: int  #: the number of its MetaGraph
    view: GraphView  #: what it is
    preserved: Container[str] = ()  #: the nodes whose results somebody fetches
    is_loop_body: bool = False  #: it is the body of a loop, and nothing else
    is_called_once: bool = False  #: a single node calls it, and no object does

    def input_unit(self, node: int, position: int) -> int:
        """The type of an input."""
        return self.view.base[node] + self.view.signatures[node].inputs[position]

    def output_unit(self, node: int, port: int) -> int:
        """The type of a result."""
        return self.view.base[node] + self.view.signatures[node].outputs[port]


class Change(NamedTuple):
    """What changes in a body if a variable becomes 16 bit."""

    body: Body  #: where
    #: ``unit``, ``argument`` or ``result``, which becomes 16 bit; ``cast``, a cast to 16 bit, which
    #: goes; ``initial``, a node that assigns a value which stays float32, and has to be cast
    kind: str
    number: int  #: of the unit, argument, result or node


_Changes = Sequence[tuple[Change, int]]  # each with the ``DataType`` number of its variable


def _bodies(number: int, meta: Any, preserved: Container[str]) -> list[Body]:
    graph, library = meta.graph_def, meta.graph_def.library
    functions = [function for function in library.function if not function.signature.attr]
    nodes = [
        node
        for body in (graph.node, *(function.node_def for function in library.function))
        for node in body
    ]
    calls = collections.Counter(name for node in nodes for name in referenced(node))
    calls.update(meta.object_graph_def.concrete_functions.keys())
    loop_bodies, templates = find_loop_bodies(library.function), Templates(library)
    found = [Body(number, read_graph(graph, templates), preserved)]
    for function in functions:
        name, view = function.signature.name, read_function(function, templates)
        found.append(
            Body(number, view, is_loop_body=name in loop_bodies, is_called_once=calls[name] == 1)
        )
    return found


class _VariableSearch:
    """Finds variables, and what reads and writes them, in bodies by the number of their MetaGraph
    and name.
    """

    def __init__(self, bodies: Mapping[tuple[int, str], Body]) -> None:
        self._bodies = bodies
        self._places: dict[Hashable, int] = {}
        self._links: list[tuple[int, int]] = []
        self._kept: dict[int, tuple[Kept, str]] = {}
        self._changes: dict[int, list[Change]] = collections.defaultdict(list)
        self._reads: dict[int, list[tuple[Body, int]]] = collections.defaultdict(
            list
        )  # the nodes that give its value
        self._keys: dict[int, str] = {}
        self._objects: dict[int, Any] = {}

    def follow_handles(self, body: Body) -> None:
        view = body.view
        for node in view.nodes_with(table.VARIABLE_HANDLES):
            named = view.protos[node].attr.get("shared_name")
            shared = (named.s if named else b"") or view.names[node].encode()
            self._links.append((self._node(body, node), self._place(body.meta, "shared", shared)))
            held = next(unit for unit in view.units(node) if view.slot(node, unit).attr == "dtype")
            self._change(self._node(body, node), body, "unit", held)
        for source, port, node, position in view.edges.rows(
            "src_node", "src_port", "dst_node", "dst_position"
        ):
            handle = self._handle(body, source, port)
            if handle is None:
                continue
            op = view.ops[node]
            if op in table.VARIABLE_VALUES and view.names[node] in body.preserved:
                self._keep(handle, Kept.READ, body, node)
            elif op in table.VARIABLE_VALUES:
                self._reads[handle].append((body, node))
                self._change(handle, body, "unit", body.output_unit(node, 0))
                self._follow_value(handle, body, node)
            elif op in table.VARIABLE_WRITES and position == 0:
                self._change(handle, body, "unit", body.input_unit(node, 1))
                self._follow_back(handle, body, node)
            elif callees := self._callees(body, node, position):
                for callee, argument in callees:
                    self._links.append((handle, self._node(callee, argument)))
            elif op not in table.VARIABLE_QUESTIONS | table.UNCHANGED and not self._stays(
                body, source, node
            ):
                self._keep(
                    handle, Kept.WRITTEN if op in table.STORING else Kept.HANDED_ON, body, node
                )

    def link_objects(self, meta: int, objects: Any, checkpoint: Checkpoint) -> None:
        """Links the objects of a MetaGraph with their keys, and with the arguments of functions
        that captured them.
        """
        places = [self._place(meta, "object", number) for number in range(len(objects.nodes))]
        for place, node in zip(places, objects.nodes, strict=True):
            if node.HasField("variable"):
                self._objects[place] = node.variable
                if node.variable.experimental_distributed_variable_components:
                    self._kept[place] = Kept.DISTRIBUTED, ""
        for number, key in checkpoint.keys_of(objects):
            self._links.append((places[number], self._key(key)))
        for name, function in objects.concrete_functions.items():
            if body := self._bodies.get((meta, name)):
                arguments = body.view.nodes_with((ARG_OP,))
                captured = arguments[len(arguments) - len(function.bound_inputs) :]
                for number, argument in zip(function.bound_inputs, captured, strict=True):
                    self._links.append((places[number], self._node(body, argument)))

    def judge(
        self, checkpoint: Checkpoint, beyond: Sequence[Mapping[str, Container[str]]]
    ) -> tuple[list[StoredVariable], dict[Body, list[tuple[Change, int]]]]:
        """Decides for each float32 tensor of the checkpoint, sets the types of objects, and finds
        what bodies change.

        ``beyond`` is what :func:`find_beyond_range` found before the graphs were converted.

        A FileError where its values cannot be read.
        """
        unseen, variables = dict(checkpoint.shapes), list[StoredVariable]()
        decided: dict[Body, list[tuple[Change, int]]] = collections.defaultdict(list)
        for group, keys in self._variables(checkpoint):
            changes = [change for place in group for change in self._changes[place]]
            casts = [change for change in changes if change.kind == "cast"]
            types = {change.body.view.protos[change.number].attr["DstT"].type for change in casts}
            kept = next((self._kept[place] for place in group if place in self._kept), None)
            if len(types) != 1:
                kept = kept or (Kept.UNREAD, "")
            reads = [read for place in group for read in self._reads[place]]
            if any(
                body.view.names[node] in beyond[body.meta].get(body.view.function, ())
                for body, node in reads
            ):
                kept = Kept.RANGE, ""
            if not kept and not all(checkpoint.fits(key, min(types)) for key in keys):
                kept = Kept.RANGE, ""
            objects = [self._objects[place] for place in group if place in self._objects]
            precision = Precision.FLOAT32 if kept else _F16[min(types)]
            for key in keys:
                name = objects[0].name if objects else key
                variables.append(
                    StoredVariable(name, key, unseen.pop(key), precision, *(kept or ()))
                )
            if not kept:
                for change in changes:
                    decided[change.body].append((change, precision.data_type))
                for variable in objects:
                    variable.dtype = precision.data_type
        has_references = any(
            body.view.nodes_with(table.REFERENCE_VARIABLES) for body in self._bodies.values()
        )
        why = Kept.REFERENCE if has_references else Kept.UNREAD
        variables += [
            StoredVariable(key, key, shape, Precision.FLOAT32, why) for key, shape in unseen.items()
        ]
        return variables, decided

    def find_beyond_range(
        self, checkpoint: Checkpoint, data_type: int
    ) -> Iterator[tuple[Body, str]]:
        """The nodes that give variables, each with its body, of which a value becomes infinite in a
        16-bit type.

        A FileError where values cannot be read.
        """
        for group, keys in self._variables(checkpoint):
            reads = [read for place in group for read in self._reads[place]]
            if reads and not all(checkpoint.fits(key, data_type) for key in keys):
                yield from ((body, body.view.names[node]) for body, node in reads)

    def _variables(self, checkpoint: Checkpoint) -> Iterator[tuple[Sequence[int], list[str]]]:
        """The places of each variable that the checkpoint has as a whole in float32, with its keys
        there.
        """
        for group in connected(self._places.values(), self._links):
            keys = [self._keys[place] for place in group if place in self._keys]
            if keys and checkpoint.shapes.keys() >= {*keys}:
                yield group, keys

    def _place(self, *what: Hashable) -> int:
        return self._places.setdefault(what, len(self._places))

    def _node(self, body: Body, node: int) -> int:
        return self._place(body.meta, body.view.function, node)

    def _key(self, key: str) -> int:
        place = self._place("key", key)
        self._keys[place] = key
        return place

    def _change(self, place: int, body: Body, kind: str, number: int) -> None:
        self._changes[place].append(Change(body, kind, number))

    def _keep(self, place: int, why: Kept, body: Body, node: int) -> None:
        function, name = body.view.function, body.view.names[node]
        self._kept.setdefault(place, (why, f"{function}/{name}" if function else name))

    def _handle(self, body: Body, node: int, port: int) -> int | None:
        """The place from which a tensor comes that is a handle; ``None`` for other tensors."""
        view = body.view
        while view.ops[node] not in table.VARIABLE_HANDLES:
            if view.ops[node] == ARG_OP:
                return (
                    self._node(body, node)
                    if view.dtypes[view.base[node]] == datatypes.RESOURCE
                    else None
                )
            if view.ops[node] in table.UNCHANGED:
                port = 0
            elif not table.is_loop(view.ops[node]):
                return None
            node, port = view.inputs(node)[port]
        return self._node(body, node)

    def _callees(self, body: Body, node: int, position: int) -> list[tuple[Body, int]]:
        """The functions that get an input of a node, and as which argument; none if one of them is
        not known.
        """
        op = body.view.ops[node]
        argument = position - table.HANDING_OVER.get(op, position + 1)
        if argument < 0:
            return []
        found = [
            self._bodies.get((body.meta, name))
            for name in referenced(body.view.protos[node])
            if name != op
        ]
        known = [callee for callee in found if callee is not None]
        return [(callee, argument) for callee in known] if len(known) == len(found) else []

    def _stays(self, body: Body, source: int, node: int) -> bool:
        """Whether this is the body of a loop, and a result of it what came in."""
        result = node - len(body.view.nodes_with((ARG_OP,)))
        return body.is_loop_body and body.view.ops[node] == RETVAL_OP and source == result

    def _follow_value(self, handle: int, body: Body, node: int, port: int = 0) -> None:
        view = body.view
        for reader, position in view.readers(node, port):
            op = view.ops[reader]
            cast = view.protos[reader]
            truncates = (
                cast.attr.get("Truncate") if op in table.CASTS else None
            )  # an index would add what is not there
            if (
                op in table.CASTS
                and cast.attr["DstT"].type in _F16
                and not (truncates and truncates.b)
            ):
                self._change(handle, body, "cast", reader)
                continue
            unit = body.input_unit(reader, position)
            is_passing = (
                op in _PASSING and position == 0 and view.names[reader] not in body.preserved
            )
            is_saved = op in table.CHECKPOINT_WRITES and position >= table.CHECKPOINT_WRITES[op]
            if is_saved or op in table.SHAPE_QUESTIONS:
                self._change(handle, body, "unit", unit)
            elif (
                op in table.VARIABLE_WRITES
                and (written := self._handle(body, *view.inputs(reader)[0])) is not None
            ):
                self._links.append((handle, written))
            elif is_passing and unit == body.output_unit(reader, 0):
                self._change(handle, body, "unit", unit)
                self._follow_value(handle, body, reader)
            elif self._stays(body, node, reader):
                self._change(handle, body, "result", node)
            elif (callees := self._callees(body, reader, position)) and all(
                each.is_called_once for each, _ in callees
            ):
                self._change(handle, body, "unit", unit)
                for callee, argument in callees:
                    self._reads[handle].append((callee, argument))
                    self._change(handle, callee, "argument", argument)
                    self._follow_value(handle, callee, argument)
                if table.is_loop(op):
                    self._follow_value(handle, body, reader, position)
            else:
                self._keep(handle, Kept.READ, body, reader)

    def _follow_back(self, handle: int, body: Body, writer: int) -> None:
        """Follows the value that a node assigns to where it comes from."""
        view = body.view
        (node, port), way = view.inputs(writer)[1], []
        while view.ops[node] in _PASSING:
            way.append(node)
            node, port = view.inputs(node)[0]
        if view.ops[node] in table.VARIABLE_VALUES:
            return  # that variable's value is followed to here
        if view.ops[node] in table.CHECKPOINT_READS:
            constants = [view.protos[source] for source, _ in view.inputs(node)[1:]]
            values = (each and each.attr.get("value") for each in constants)
            names, slices = (value.tensor.string_val if value else () for value in values)
            if (
                any(len(view.readers(each)) != 1 for each in way)
                or len(view.readers(node, port)) != 1
            ):
                self._keep(handle, Kept.WRITTEN, body, writer)
            elif port >= min(len(names), len(slices)) or slices[port]:
                self._keep(handle, Kept.PARTITIONED, body, writer)
            else:
                self._links.append((handle, self._key(names[port].decode())))
                for each in way:
                    self._change(handle, body, "unit", body.input_unit(each, 0))
                self._change(handle, body, "unit", body.output_unit(node, port))
        elif view.function:
            self._keep(handle, Kept.WRITTEN, body, writer)
        else:
            self._change(handle, body, "initial", writer)


_SUFFIX = "AmpTfWeights"
_FOR_INFERENCE = (
    "amp_tf stored these weights in {}, for inference. To train, take the model that was "
    "converted, or convert it "
    "without 16-bit weights. Where this model is a part of one that is trained, call it outside "
    "of the GradientTape, "
    "or in tape.stop_recording()"
)


def _search(
    model: Any, checkpoint: Checkpoint, preserved: Sequence[frozenset[str]]
) -> _VariableSearch:
    """The places of all variables of a ``SavedModel`` proto, and what would change with their
    types.
    """
    found = [
        body
        for number, each in enumerate(preserved)
        for body in _bodies(number, model.meta_graphs[number], each)
    ]
    search = _VariableSearch({(body.meta, body.view.function): body for body in found})
    for body in found:
        search.follow_handles(body)
    for number, meta in enumerate(model.meta_graphs):
        search.link_objects(number, meta.object_graph_def, checkpoint)
    return search


def find_beyond_range(
    model: Any, checkpoint: Checkpoint, preserved: Sequence[frozenset[str]], precision: Precision
) -> list[dict[str, set[str]]]:
    """Finds the nodes that give variables with values which become infinite in a 16-bit type.

    Returns for each MetaGraph their names, by function, ``""`` for its graph. Arguments: as of
    :func:`store_weights`. Raises a GraphError where a graph is broken, and a FileError where the
    checkpoint cannot be read.
    """
    found: list[dict[str, set[str]]] = [{} for _ in model.meta_graphs]
    if not checkpoint.shapes:
        return found
    search = _search(model, checkpoint, preserved)
    for body, name in search.find_beyond_range(checkpoint, precision.data_type):
        found[body.meta].setdefault(body.view.function, set()).add(name)
    return found


def store_weights(
    model: Any,
    checkpoint: Checkpoint,
    preserved: Sequence[frozenset[str]],
    beyond: Sequence[Mapping[str, Container[str]]],
) -> Weights:
    """Gives variables of a ``SavedModel`` proto, which is converted and is changed, 16-bit types
    where its graphs read them so.

    The copy needs those variables of its checkpoint in 16 bit that are ``stored`` of the result.
    ``preserved`` are, of each MetaGraph, the nodes of its graph whose results somebody fetches, and
    ``beyond`` what :func:`find_beyond_range` found.

    Raises a GraphError where a graph is broken, and a RewriteError where the result did not pass
    verification; this is a bug of amp_tf.
    """
    search = _search(model, checkpoint, preserved)
    variables, changes = search.judge(checkpoint, beyond)
    for number, meta in enumerate(model.meta_graphs):
        graph, bodies = (
            meta.graph_def,
            {body.view.function: body for body in changes if body.meta == number},
        )
        for function in graph.library.function:
            if called := bodies.get(function.signature.name):
                function.CopyFrom(_function_after(function, called, changes[called]))
        if outer := bodies.get(""):
            after = apply_to_graph(graph, outer.view.names, _edits(outer.view, changes[outer]))
            del graph.node[:]
            graph.node.extend(after.node)
        templates = Templates(graph.library)
        try:  # types agree on every edge of what can be read
            if "" in bodies:
                read_graph(graph, templates)
            for function in graph.library.function:
                if function.signature.name in bodies:
                    read_function(function, templates)
        except GraphError as error:
            what = (
                f"the graph with 16-bit weights did not pass verification: {error.where}: "
                f"{error.what}"
            )
            fix = 'This is a bug of amp_tf; please report it with the model. Without weights="f16" it is converted'
            raise RewriteError(what, fix=fix) from error
    return Weights(tuple(sorted(variables, key=lambda each: (-each.size, each.key))))


def _function_after(function: Any, body: Body, changes: _Changes) -> Any:
    view = body.view
    edits = _edits(view, changes)
    gate = Templates().find(table.GRADIENT_GATE).signature(None)
    signatures = list(view.signatures)
    for reop in edits.reops:
        signatures[reop.node] = gate
    after = apply_to_function(function, view.names, view.signatures, edits, signatures)
    for change, data_type in changes:
        if change.kind == "argument":
            after.signature.input_arg[change.number].type = data_type
        elif change.kind == "result":
            after.signature.output_arg[change.number].type = data_type
    return after


def _edits(view: GraphView, changes: _Changes) -> Edits:
    fresh = FreshNames(view.names, _SUFFIX)
    units: dict[int, set[int]] = collections.defaultdict(set)
    reops, rewires = [], []
    new: list[NewNode] = []
    for change, data_type in changes:
        node = change.number
        if change.kind == "unit":
            units[data_type].add(node)
        elif change.kind == "cast":
            message = _FOR_INFERENCE.format(datatypes.type_name(data_type)).encode()
            attributes = dict.fromkeys(("SrcT", "DstT", "Truncate"))
            attributes |= {"T": attribute(type=data_type), "message": attribute(s=message)}
            reops.append(Reop(node, table.GRADIENT_GATE, attributes))
        elif change.kind == "initial":
            source = view.inputs(node)[1]
            name = fresh.make(view.names[node])
            rewires.append(Rewire(node, 1, view.node_count + len(new), 0))
            new.append(
                NewNode.cast(name, source, view.devices[node], of=datatypes.FLOAT, to=data_type)
            )
    retypes = tuple(view.retyped(sorted(found), data_type) for data_type, found in units.items())
    return Edits(reops=tuple(reops), retypes=retypes, rewires=tuple(rewires), new=tuple(new))
