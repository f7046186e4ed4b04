"""Finds the layers of a lock file in a graph, also after they were renamed, moved or changed.

A layer is looked for by its path first. Where there is none of that path, or it is made in another way, it is the one
layer that is made as the lock says; where several are, the one in the same place among them, if they are as many as
they were. Where there is none, the layer of that path stays in float32 whatever it computes, or else the layer around
it. Entries that no longer match are reported at exit (:attr:`Match.words`).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterable, Iterator, Sequence

from amp_tf.graph.datatypes import Node
from amp_tf.graph.names import is_gradient, is_within, path_of, scope_of, whole_of, without_calls
from amp_tf.graph.sizes import Shapes, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.lock import Decision, Layer, Lock
from amp_tf.oplists.fusions import SPLIT_PRODUCTS
from amp_tf.oplists.table import ADDING, BIASES, CLEAR, CONSTANTS, PRODUCTS, ROWS, SCALING, VARIABLE_READERS

_COMPUTING = frozenset(row.op for row in ROWS if row.op_list != CLEAR)
# TensorFlow's optimizers make one of the other: a sum with a bias, and x / 10 that becomes x * 0.1.
_ALIASES = {**dict.fromkeys((*ADDING, *BIASES), "sum"), **dict.fromkeys(SCALING, "scale")}
_TOLD = 10  # decisions in one line


class Certainty(enum.IntEnum):
    """How sure it is that a layer is the one that the lock means; the smaller, the surer."""

    SAME = 0
    MOVED = 1
    OTHER_COUNT = 2
    CHANGED = 3
    AROUND = 4
    NOT_FOUND = 5


@dataclasses.dataclass(frozen=True)
class Match:
    """What was found for a decision of a lock file.

    Attributes:
        name: the layer's path in the lock, or the node's name.
        found: the path of the layer, or the name of the node, that stays in float32; empty where none does.
    """

    name: str
    certainty: Certainty
    found: str = ""
    is_node: bool = False

    @property
    def words(self) -> str:
        """What changed, in words; empty where it is the same."""
        changes = (
            "",
            f"is {self.found} now",
            "is one of more or fewer layers that are alike",
            "computes something else now",
            f"is gone, and {self.found} around it stays in float32",
            "is gone, and nothing stays in float32 for it",
        )
        return f"{self.name} {changes[self.certainty]}" if self.certainty else ""


@dataclasses.dataclass(frozen=True)
class Locked:
    """What a lock file means in one graph: the nodes that stay in float32, and the layers, of which tuning chooses."""

    nodes: frozenset[Node] = frozenset()
    matches: tuple[Match, ...] = ()
    layers: tuple[Layer, ...] = ()


NOTHING_LOCKED = Locked()


def find_locked(lock: Lock, view: GraphView, shapes: Shapes | None) -> Locked:
    """Finds what a lock keeps in float32."""
    layers = find_layers(view, shapes)
    found = [_find(decision, view, layers) for decision in lock.decisions]
    names = {match.found for match in found if match.is_node}
    paths = {match.found for match in found if match.found and not match.is_node}
    kept = frozenset(
        node
        for node, name in enumerate(view.names)
        if whole_of(name) in names or any(is_within(name, path) for path in paths)
    )
    return Locked(kept, tuple(found), tuple(layers))


def surest(matches: Iterable[Match]) -> dict[str, Match]:
    """For each decision, the surest of what was found for it in several graphs."""
    found: dict[str, Match] = {}
    for match in matches:
        if match.name not in found or match.certainty < found[match.name].certainty:
            found[match.name] = match
    return found


def describe(matches: Iterable[Match]) -> str:
    """The entries of a lock file that no longer match, in words; empty for none."""
    words = sorted(match.words for match in matches if match.words)
    more = f"; and {len(words) - _TOLD:,} more" if len(words) > _TOLD else ""
    return "; ".join(words[:_TOLD]) + more


def find_layers(view: GraphView, shapes: Shapes | None) -> list[Layer]:
    """The innermost layers of a graph that compute anything, in the order of their first nodes."""
    nodes: dict[str, list[Node]] = {}
    for node in view.nodes_with(_COMPUTING.union(SPLIT_PRODUCTS)):
        if not is_gradient(view.names[node]):
            nodes.setdefault(scope_of(view.names[node]), []).append(node)
    made: dict[str, tuple[str, tuple[str, ...]]] = {}
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for path, own in nodes.items():
        counted = collections.Counter(op for node in own for op in _computed(view, node))
        structure = " ".join(op if count == 1 else f"{op}*{count}" for op, count in sorted(counted.items()))
        made[path] = structure, tuple(sorted(shape for node in own for shape in _weights(view, node, shapes)))
        alike.setdefault(made[path], []).append(path)
    return [
        Layer(path, *kind, alike[kind].index(path) + 1, len(alike[kind]), path_of(view.names[nodes[path][0]]))
        for path, kind in made.items()
    ]


def _find(decision: Decision, view: GraphView, layers: Sequence[Layer]) -> Match:
    if not decision.node:
        return _find_layer(decision.layer, view, layers)
    name = decision.node
    names = list(map(whole_of, view.names))
    same = next((found for found in names if without_calls(found) == name), "")
    if same:
        return Match(name, Certainty.SAME, same, is_node=True)
    match = _find_layer(decision.layer, view, layers)
    if match.certainty is Certainty.MOVED:
        own = name.rpartition("/")[2], is_gradient(name)  # in its layer
        inner = (found for found in names if is_within(found, match.found))
        if found := next((found for found in inner if (found.rpartition("/")[2], is_gradient(found)) == own), ""):
            return Match(name, Certainty.MOVED, found, is_node=True)
    certainty = Certainty.AROUND if match.found else Certainty.NOT_FOUND
    return Match(name, certainty, match.found)


def _find_layer(wanted: Layer, view: GraphView, layers: Sequence[Layer]) -> Match:
    name = wanted.path
    # A layer in Keras may have several scopes in it, of which the one of the same name comes first.
    here = sorted((layer for layer in layers if layer.is_called_as(wanted)), key=lambda layer: layer.path != name)
    alike = [layer for layer in layers if layer.is_made_as(wanted)]
    if same := [layer for layer in here if layer in alike]:
        as_many = wanted.alike == 1 or same[0].alike == wanted.alike
        return Match(name, Certainty.SAME if as_many else Certainty.OTHER_COUNT, same[0].path)
    if len(alike) == wanted.alike:
        return Match(name, Certainty.MOVED, alike[wanted.place - 1].path)
    if here or any(is_within(found, name) for found in view.names):
        found = here[0].path if here else name
        return Match(name, Certainty.CHANGED if wanted.structure else Certainty.SAME, found)
    around = _around(name, (layer.path for layer in layers))
    return Match(name, Certainty.AROUND if around else Certainty.NOT_FOUND, around)


def _around(path: str, paths: Iterable[str]) -> str:
    """The innermost scope around a layer that other layers are in; of a model of layers alone there is none."""
    known = list(paths)
    above = path.rpartition("/")[0]
    while above.count("/"):
        if any(is_within(f"{other}/", above) for other in known):
            return above
        above = above.rpartition("/")[0]
    return ""


def _computed(view: GraphView, node: Node) -> Iterator[str]:
    op = view.ops[node]
    if op in SPLIT_PRODUCTS:
        yield SPLIT_PRODUCTS[op].op
        steps = (step.decode() for step in view.protos[node].attr["fused_ops"].list.s)
        yield from (_ALIASES.get(step, step) for step in steps if step in _COMPUTING)
    else:
        yield _ALIASES.get(op, op)


def _weights(view: GraphView, node: Node, shapes: Shapes | None) -> Iterator[str]:
    """The shape of what a product multiplies by, if that is a variable or a constant."""
    op = view.ops[node]
    inputs = view.inputs(node)
    if shapes is None or op not in PRODUCTS.union(SPLIT_PRODUCTS) or len(inputs) < 2:
        return
    source, port = inputs[1]
    shape = shape_of(shapes, view.names[source], port)
    is_stored = view.ops[source] in VARIABLE_READERS or view.ops[source] in CONSTANTS
    if is_stored and shape is not None and min(shape, default=0) >= 0:
        yield "x".join(map(str, shape))
