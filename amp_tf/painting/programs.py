"""Programs: functions that call each other, looked at as if their calls were inlined.

XLA is given functions as the program wrote them. TensorFlow inlines calls, and lowers branches and
loops, before it runs its graph optimizers, so the graphs of the plugin hold none. A value may come
from one function and be needed exactly in another, as by a loss that is a ``tf.function``. So the
canvases of all functions become one here: what reads an argument of a called function reads what
the calls give it, and what reads the result of a call, a branch or a loop reads what the functions
return.

The rules that keep nodes in float32 run on this canvas first, and their paint stays on the canvases
of the functions. Then they run on each of these alone, as all other rules do: so nothing becomes 16
bit because another function uses it, which one of several callers might not do. A function that is
called twice has one definition, and what one of its callers needs holds for both. Arguments and
results of functions keep their types in any case.

A function that an unknown op calls keeps its own arguments. The first function's results leave the
program here, and do not come back as its next arguments. TensorLists that functions share are
another matter (:mod:`amp_tf.rewriting.sharing`).
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from amp_tf.graph.algorithms import gather
from amp_tf.graph.attributes import ARG_OP
from amp_tf.graph.datatypes import Indices, Node, Unit, UnitMask, indices
from amp_tf.graph.reader import RETVAL_OP
from amp_tf.graph.templates import called
from amp_tf.graph.view import GraphView
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas, Marks
from amp_tf.painting.eligibility import NO_OBSTACLES

#: In the view of a program, the op of what only hands values over: calls, arguments and results.
_HANDED_OVER = "_HandedOver"


class Body(NamedTuple):
    """A function of a program.

    Attributes:
        view: its graph.
        start: its first unit among those of all functions.
    """

    view: GraphView
    start: int

    @classmethod
    def of_all(cls, views: Sequence[GraphView]) -> dict[str, Body]:
        """Returns the bodies of some functions, by name."""
        bodies: dict[str, Body] = {}
        count = 0
        for view in views:
            bodies[view.function] = cls(view, count)
            count += view.unit_count
        return bodies

    def ends(self, op: str) -> list[int]:
        """Returns the units of its arguments or results, in order, with the offset."""
        return [self.start + self.view.base[node] for node in self.view.nodes_with((op,))]

    def all_ends(self) -> list[int]:
        """Returns the units of its arguments and results, with the offset."""
        return [*self.ends(ARG_OP), *self.ends(RETVAL_OP)]

    def hands_over(self, node: Node, bodies: Mapping[str, Body]) -> bool:
        """Tells whether a node only hands its inputs to some functions, and returns their results.

        The functions must be among the given ones.
        """
        op = self.view.ops[node]
        names = called(self.view.protos[node], bodies)
        return bodies.keys() >= {*names} and (op in table.HANDING_OVER or op in bodies)

    def handed(self, node: Node, bodies: Mapping[str, Body]) -> Iterator[tuple[int, int]]:
        """Yields the units from which a call hands values over, each with that which gets them."""
        first = table.HANDING_OVER.get(self.view.ops[node], 0)
        arguments = [self.start + unit for unit in self.view.input_units(node)]
        results = [self.start + unit for unit in self.view.output_units(node)]
        for name in called(self.view.protos[node], bodies):
            yield from zip(arguments[first:], bodies[name].ends(ARG_OP), strict=False)
            yield from zip(bodies[name].ends(RETVAL_OP), results, strict=False)


def join(canvases: Sequence[Canvas]) -> Canvas:
    """Returns the canvas of a program, on which values cross calls.

    Args:
        canvases: those of its functions, the first of which has callers outside of the program.
    """
    first, *_ = canvases
    views = [canvas.view for canvas in canvases]
    bodies = Body.of_all(views)
    links, of_loops = _find_links(canvases, bodies)
    handing_over = {*itertools.chain.from_iterable(links)}
    for body in bodies.values():
        handing_over.update(body.ends(RETVAL_OP))
    view = _join_views(views, handing_over)
    rows = [np.array([(*link, 0) for link in links], np.int32).reshape(-1, 3).T]
    causes = []
    for canvas, body in zip(canvases, bodies.values(), strict=True):
        rows.append(np.stack([canvas.src + body.start, canvas.dst + body.start, canvas.positions]))
        causes.append(canvas.cause + body.start)
    handing = _Handing(np.concatenate(rows, axis=1), view.units_with((_HANDED_OVER,)))
    closing: set[Node] = set()
    for unit in of_loops:
        closing.update(map(view.unit_nodes.__getitem__, handing.sources_of(unit)))
    subject = dataclasses.replace(
        first.subject,
        view=view,
        obstacles=NO_OBSTACLES,
        beyond_range=(),
        closing=sorted(closing),
    )
    joined = {"cause": np.concatenate(causes)}
    for name in {*Marks.__annotations__, "processable", "locked"} - {"cause", "weighed"}:
        joined[name] = np.concatenate([getattr(canvas, name) for canvas in canvases])
    return first.having(subject=subject, clusters=(), **joined).connected(*handing.bypassed())


def split(program: Canvas, canvases: Sequence[Canvas]) -> list[Canvas]:
    """Returns the canvases of the functions of a program with the paint of the program's.

    In the place of a cause in another function stands the node that hands the value over.
    """
    is_handed = program.view.units_with((_HANDED_OVER,))
    found = []
    start = 0
    for canvas in canvases:
        part = slice(start, start + canvas.view.unit_count)
        cause = program.cause[part] - start
        for unit in indices((cause < 0) | (cause >= len(cause))):
            beside = canvas.links.fanouts(unit)
            if program.cause[start + unit] in program.links.fanins(start + unit):
                beside = canvas.links.fanins(unit)
            cause[unit] = next((other for other in beside if is_handed[start + other]), unit)
        paint = {}
        for name in ("on_allow", "allow", "deny", "code"):
            paint[name] = getattr(program, name)[part]
        found.append(canvas.having(cause=cause, **paint))
        start = part.stop
    return found


def _find_links(
    canvases: Sequence[Canvas], bodies: Mapping[str, Body]
) -> tuple[list[tuple[Unit, Unit]], list[Unit]]:
    """Finds the units between which calls hand values over, and the results of loops' bodies."""
    calls: list[tuple[Body, Node]] = []
    for canvas, body in zip(canvases, bodies.values(), strict=True):
        calls += zip(itertools.repeat(body), indices(canvas.subject.calls), strict=False)
    root, *_ = bodies
    callees = {name: body for name, body in bodies.items() if name != root}
    while True:
        handing = [body.hands_over(node, callees) for body, node in calls]
        unknown: set[str] = set()
        for body, node in itertools.compress(calls, map(operator.not_, handing)):
            unknown.update(called(body.view.protos[node], callees))
        if unknown.isdisjoint(callees):
            break
        callees = {name: body for name, body in callees.items() if name not in unknown}
    links: list[tuple[Unit, Unit]] = []
    of_loops: list[Unit] = []
    for body, node in itertools.compress(calls, handing):
        links += body.handed(node, callees)
        call = body.view.protos[node]
        if table.is_loop(call.op):
            of_loops += callees[call.attr["body"].func.name].ends(RETVAL_OP)
    return links, of_loops


def _join_views(views: Sequence[GraphView], handing_over: Iterable[Unit]) -> GraphView:
    """Returns some graphs as one, in which each has its own edges.

    Args:
        handing_over: the units whose nodes only hand values over, and get an op that says so.
    """
    joined: dict[str, list[Any]] = {}
    for name in ("signatures", "dtypes", "names", "devices", "protos"):
        of_views = map(operator.attrgetter(name), views)
        joined[name] = [*itertools.chain.from_iterable(of_views)]
    signatures = joined.pop("signatures")
    nodes = np.arange(len(signatures), dtype=np.int32)
    node_of = np.repeat(nodes, [len(signature.slots) for signature in signatures])
    for node in {int(node_of[unit]) for unit in handing_over}:
        other = {"op": _HANDED_OVER, "holds_functions": False}
        signatures[node] = dataclasses.replace(signatures[node], **other)
    ends = []
    controls = []
    start = 0
    for view in views:
        edges = view.edges
        tensors = edges.src_node + start, edges.src_port
        ends.append([*tensors, edges.dst_node + start, edges.dst_position])
        controls.append(view.controls + start)
        start += view.node_count
    types = joined.pop("dtypes")
    marks = [()] * len(nodes)
    view = GraphView.of(signatures, nodes, types, function=views[0].function, marks=marks, **joined)
    return view.connected(np.concatenate(ends, axis=1), np.concatenate(controls))


class _Handing:
    """Edges, some of which lead through units that only hand values over.

    Args:
        edges: three rows: the units that each edge connects, and its position.
        is_handed: the units that only hand values over.
    """

    def __init__(self, edges: Indices, is_handed: UnitMask) -> None:
        self._edges = edges
        self._is_handed = is_handed
        src, dst, _ = edges
        between = is_handed[src] & is_handed[dst]
        given = is_handed[dst] & ~between
        self._givers, numbers = np.unique(src[given], return_inverse=True)
        marks = [0] * len(is_handed)
        for unit, number in zip(dst[given].tolist(), numbers.tolist(), strict=True):
            marks[unit] |= 1 << number
        self._marks = gather(marks, src[between], dst[between])

    def sources_of(self, unit: Unit) -> list[Unit]:
        """Returns the units from which the values of one come that only hands them over."""
        found = []
        marks = self._marks[unit]
        while marks:
            lowest = marks & -marks
            found.append(int(self._givers[lowest.bit_length() - 1]))
            marks ^= lowest
        return found

    def bypassed(self) -> Indices:
        """Returns edges from the sources themselves, in the place of those through such units."""
        src, dst, _ = self._edges
        is_read = ~self._is_handed[dst]
        rows = self._edges[:, is_read & ~self._is_handed[src]].T.tolist()
        for unit, reader, position in self._edges[:, is_read & self._is_handed[src]].T.tolist():
            rows += [(source, reader, position) for source in self.sources_of(unit)]
        bypassed: Indices = np.array(rows, np.int32).reshape(-1, 3).T
        return bypassed
