"""Names of nodes: the layer that a node belongs to, by its path in Keras; names that are new,
close, parts or fused.

A node carries the name scopes in which it was made, and these only nearly say which layer that was:
Keras 3 opens a scope twice for each call, so ``encoder/block_1`` is ``net_1/encoder_1/block_1_1``
in ``fit``, and the scope ``dense_1`` may be that of the layer ``dense``. So scopes are recorded
while a program's graphs are traced (:mod:`amp_tf.hooks.layer_paths`), each with the layer that
opened it. The graphs of files have no record, and there a number at the end of a scope may be
TensorFlow's or the layer's.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amp_tf.errors import GraphError
from amp_tf.oplists.fusions import FUSED_BEHIND
from amp_tf.oplists.table import PRODUCTS
from amp_tf.values import LAYER, NODE, is_layer_pattern, layer_components, node_name

# Scopes that are never a layer's, and names that TensorFlow's own scopes share with layers.
_KINDS = re.compile(
    r"(?P<added>((Stateful|Stateless)?PartitionedCall|gradient_tape)?(_\d+)?|__inference_.*|Func"
    r"|(Constant|Arithmetic|Layout)(Folding|Optimizer))"
    r"|(?P<branch>body|then|else|branch\d+)"
    r"|(?P<op>(while|cond)(_grad)?(_\d+)?)"
    r"|(?P<gradients>gradients(_\d+)?)"
)
_NUMBER = re.compile(r"_\d+")  # of a body that replaced a loop or a branch: while/body/_12
_CALLS = re.compile(r"((Stateful|Stateless)?PartitionedCall(_\d+)?/)+")
_OF_GRADIENT = "_grad"  # TF1 has MatMul_grad/MatMul for what eager tapes call MatMul/MatMul
# scopes that are recorded; a program that makes models without end must not fill the memory
_MOST = 50_000
_CLOSE = 0.5
_DEPTH = 2  # a model and a layer of it
_MOST_UNMATCHED = 10  # patterns in one line

Matcher = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class KerasLayer:
    """A layer that opened a name scope.

    Attributes:
        path: Keras' ``layer.path``; tf_keras has none, and there it is the names with slashes
            between them.
        names: of the layers around it, the outermost first, and its own. Of a functional model,
            paths begin below it.
    """

    path: str
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a node was made, as its scopes tell it."""

    parts: tuple[str, ...]  #: the scopes that TensorFlow did not add, outermost first
    named: tuple[str, ...]  #: those, and scopes that a loop, a branch or a layer may have opened
    layers: tuple[KerasLayer, ...]  #: the recorded layers of the innermost scope that one opened
    is_gradient: bool


class Scopes:
    """The record of one process: which layers opened which name scopes.

    Several graphs may use one scope.
    """

    def __init__(self) -> None:
        self._layers: dict[str, tuple[KerasLayer, ...]] = {}
        self._places: dict[str, _Place] = {}  # answers by scope, until the record grows

    def record(self, scope: str, layer: KerasLayer) -> None:
        """Notes that a layer opened a scope, given as TensorFlow has it, such as
        ``"net_1/lstm_1/while/lstm_cell_1"``.

        Of several layers that open it in different graphs, the latest comes first.
        """
        known = self._layers.get(scope, ())
        if not scope or known[:1] == (layer,):
            return
        if not known and len(self._layers) >= _MOST:
            self._layers.pop(next(iter(self._layers)))
        self._layers[scope] = (layer, *(other for other in known if other != layer))
        self._places = {}

    def forget(self) -> None:
        """Forgets everything."""
        self._layers, self._places = {}, {}

    def around(self, name: str) -> tuple[KerasLayer, ...]:
        """The innermost layer in which a node was made; several where the scope is not one layer's
        alone.
        """
        return self.place(name).layers

    def paths(self) -> list[str]:
        """The paths of all layers, each once."""
        return list(
            dict.fromkeys(layer.path for layers in self._layers.values() for layer in layers)
        )

    def place(self, name: str) -> _Place:
        """Where a node was made."""
        scope = name.rpartition("/")[0]
        if scope not in self._places:
            if len(self._places) >= _MOST:
                self._places = {}
            self._places[scope] = self._read(scope.split("/") if scope else [])
        return self._places[scope]

    def _read(self, scopes: Sequence[str]) -> _Place:
        """Tells the scopes that TensorFlow added from those of layers.

        A recorded scope may begin anywhere, because a loop's body repeats the scopes around the
        loop. A scope named like a loop, a branch or a gradient is a layer's only if the record
        has it from where a graph's names begin: at the front, or behind a scope that TensorFlow
        added.
        """
        parts: list[str] = []
        named: list[str] = []
        layers: tuple[KerasLayer, ...] = ()
        begins = [0]
        is_gradient = False
        for place, scope in enumerate(scopes):
            kind = _kind(scope)
            ways = (
                "/".join(scopes[start : place + 1])
                for start in (begins if kind else range(place + 1))
            )
            opened = next((self._layers[way] for way in ways if way in self._layers), ())
            is_added = (
                bool(kind) and not opened and _is_added(kind, scopes[place:], place in begins)
            )
            if is_added:
                begins.append(place + 1)
                is_gradient |= scope.startswith("gradient")
            else:
                parts.append(scope)
                layers = opened or layers
            if not is_added or (kind == "op" and not _is_numbered(scopes[place:])):
                named.append(scope)
        return _Place(tuple(parts), tuple(named), layers, is_gradient)


@functools.lru_cache(maxsize=65_536)
def _kind(scope: str) -> str:
    """The group of ``_KINDS`` that a scope's name is in; empty where TensorFlow gives no such name."""
    found = _KINDS.fullmatch(scope)
    return (found.lastgroup or "") if found else ""


def _is_added(kind: str, scopes: Sequence[str], is_first: bool) -> bool:
    """Whether TensorFlow added the first of some scopes, which no layer is known to have opened.

    A branch's body has a number behind it. Gradients come where a graph's names begin, or the
    names of forward nodes follow, each with ``_grad``.
    """
    if kind == "branch":
        return _is_numbered(scopes)
    if kind == "gradients":
        return is_first or any(scope.endswith(_OF_GRADIENT) for scope in scopes)
    return True


def _is_numbered(scopes: Sequence[str]) -> bool:
    """Tells whether the first of some scopes is a loop, a branch, or the body of one."""
    return any(map(_NUMBER.fullmatch, scopes[1:3]))


recorded = Scopes()  #: of this process


def scopes(name: str) -> list[str]:
    """The name scopes around a node without those that TensorFlow adds, outermost first."""
    return list(recorded.place(name).parts)


def scope_of(name: str) -> str:
    """The scopes around a forward node, such as ``"functional_1/dense_1"``; the node's name where
    it has none.
    """
    return "/".join(scopes(name)) or name.rpartition("/")[2]


def without_calls(name: str) -> str:
    """A node's name in the function that it was inlined from."""
    found = _CALLS.match(name)
    return name[found.end() :] if found else name


def is_gradient(name: str) -> bool:
    """Whether a node was made by TensorFlow to compute a gradient."""
    return recorded.place(name).is_gradient


def is_within(name: str, scope: str) -> bool:
    """Whether a node is in a scope (without what TensorFlow adds), in one within it, or a gradient
    of such a node.
    """
    return f"/{scope}/" in f"/{_whole(name)}/"


def _whole(name: str) -> str:
    """The scopes and the last part of a name; of a gradient, the parts of the forward node's name
    before its own.
    """
    place = recorded.place(name)
    parts = [*place.parts, name.rpartition("/")[2]]
    return (
        "/".join(part.removesuffix(_OF_GRADIENT) for part in parts)
        if place.is_gradient
        else "/".join(parts)
    )


def path_of(name: str) -> str:
    """The path of the innermost layer in which a node was made, as it was recorded; empty where
    none was.
    """
    layers = recorded.around(name)
    return layers[0].path if layers else ""


def layer_of(name: str) -> str:
    """The layer of a node: its path in Keras where it was recorded, else guessed; empty where its
    name has none.

    A guess is the outermost scopes, such as ``"functional_1/dense_1"``.
    """
    return path_of(name) or "/".join(scopes(name)[:_DEPTH])


def matcher(pattern: str) -> Matcher:
    """Whether a pattern is for a node, as a predicate on names of nodes.

    It is ``layer:`` and a layer's path, of which each name is a regular expression and the
    outermost names may be missing, for all nodes of the layer and its gradient; or ``node:`` and a
    name, which a node has in the function that it is inlined from, as one node with what it is
    split into; else a regular expression, searched in the name.
    """
    if pattern.startswith(NODE):
        wanted = node_name(pattern)
        return lambda name: wanted in name and without_calls(whole_of(name)) == wanted
    if not is_layer_pattern(pattern):
        search = re.compile(pattern).search
        return lambda name: search(name) is not None
    components = layer_components(pattern)
    layer_is = [re.compile(component).fullmatch for component in components]
    scope_is = [re.compile(rf"(?:{component})(?:_\d+)?").fullmatch for component in components]
    known: dict[str, bool] = {}

    def is_in_layer(name: str) -> bool:
        scope = name.rpartition("/")[0]
        if scope not in known:
            place = recorded.place(name)
            ways = [way for layer in place.layers for way in (layer.names, layer.path.split("/"))]
            tests = layer_is if ways else scope_is
            known[scope] = any(_holds(way, tests) for way in ways or (place.parts, place.named))
        return known[scope]

    return is_in_layer


def _holds(names: Sequence[str], tests: Sequence[Callable[[str], object]]) -> bool:
    """Whether names, one directly inside the other, pass the tests in a row."""
    return any(
        all(test(name) for test, name in zip(tests, names[start:], strict=False))
        for start in range(len(names) - len(tests) + 1)
    )


def describe_unmatched(patterns: Iterable[str], names: Iterable[str]) -> str:
    """The first patterns that matched no node, and how many more; one for a layer with the closest
    that finds one.
    """
    patterns, paths, found = list(patterns), recorded.paths(), []
    more = len(patterns) - _MOST_UNMATCHED
    patterns = patterns[:_MOST_UNMATCHED]
    if not paths and any(map(is_layer_pattern, patterns)):
        around = [
            scopes(f"{scope}/")
            for scope in dict.fromkeys(name.rpartition("/")[0] for name in names)
        ]
        paths = ["/".join(parts[:end]) for parts in around for end in range(1, len(parts) + 1)]
    for pattern in patterns:
        path = "/".join(layer_components(pattern)) if is_layer_pattern(pattern) else ""
        close = closest_layers(path, paths) if path else []
        found.append(f"{pattern} (did you mean {LAYER}{close[0]}?)" if close else pattern)
    if more > 0:
        found.append(f"and {more:,} more")
    return ", ".join(found)


def closest_layers(path: str, paths: Iterable[str]) -> list[str]:
    """Up to three of what finds a layer and is spelled like a path: whole paths, or as many names
    of them in a row.
    """
    length = path.count("/") + 1
    known: dict[str, None] = {}
    for whole in paths:
        names = whole.split("/")
        known[whole] = None
        for start in range(len(names) - length + 1):
            known["/".join(names[start : start + length])] = None
    return difflib.get_close_matches(path, list(known), n=_SHOWN, cutoff=_CLOSE)


#: ends the name of every cast that a rewrite inserts, as in TensorFlow's own pass
CAST_SUFFIX = "AutoMixedPrecision"
HOIST_SUFFIX = (
    "AmpTfHoist"  #: ends the names of variables' reads before loops, and of what brings them in
)
SPLIT_SUFFIX = "AmpTfSplit"  #: ends the names of the nodes that a fused product is split into
_PART = re.compile(rf"(.+)-\w+-\d+-{SPLIT_SUFFIX}", re.DOTALL)
_SHOWN = 3  #: of the closest names


class FreshNames:
    """Makes names that no node has."""

    def __init__(self, taken: Iterable[str], suffix: str) -> None:
        self._taken = set(taken)
        self._suffix = suffix

    def make(self, stem: str) -> str:
        """A name that begins with the stem; a number stands between it and the suffix."""
        number, name = 0, f"{stem}-0-{self._suffix}"
        while name in self._taken:
            number += 1
            name = f"{stem}-{number}-{self._suffix}"
        self._taken.add(name)
        return name


def whole_of(name: str) -> str:
    """The name of the fused product that a node was a part of; of other nodes their own."""
    part = _PART.fullmatch(name) if name.endswith(SPLIT_SUFFIX) else None
    return part[1] if part else name


def missing_node(wanted: str, names: Sequence[str], where: str) -> GraphError:
    """The error for what is not a node name; it lists the closest ones."""
    close = closest(wanted, names)
    return GraphError(
        f"the graph has no node {wanted!r}",
        where=where,
        fix=f"The closest names: {', '.join(close)}"
        if close
        else "amp-tf explain --all lists all names",
    )


def closest(wanted: str, names: Sequence[str]) -> list[str]:
    """Up to three names, first those of a node or layer called so: Keras puts the model's name
    before the layer's.
    """
    inner = sorted(filter(re.compile(rf"/{re.escape(wanted)}(_\d+)?(/|$)").search, names), key=len)
    return list(
        dict.fromkeys([*inner, *difflib.get_close_matches(wanted, names, n=_SHOWN, cutoff=0.5)])
    )[:_SHOWN]


_FUSED_AT_MOST = 3  # bias, normalization, activation


def find_followers(graph: Any) -> Mapping[str, tuple[str, ...]]:
    """For each product, and each node that may be fused with it, those behind it in its scope that
    may be, in order.

    TensorFlow's remapper gives a fused node the name of the last one: ``dense/MatMul``,
    ``dense/BiasAdd`` and ``dense/Relu`` become a ``_FusedMatMul`` called ``dense/Relu``. So a
    pattern for one must find those behind it, too.
    """
    nodes = {
        node.name: node for node in (graph.node_def if hasattr(graph, "node_def") else graph.node)
    }
    readers: dict[str, list[str]] = {}
    for node in nodes.values():
        for text in node.input:
            if not text.startswith("^"):
                readers.setdefault(text.partition(":")[0], []).append(node.name)
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes.values():
        if node.op in PRODUCTS:
            chain, last = list[str](), node.name
            while len(chain) < _FUSED_AT_MOST and len(readers.get(last, ())) == 1:
                last = readers[last][0]
                if nodes[last].op not in FUSED_BEHIND or _scope(last) != _scope(node.name):
                    break
                chain.append(last)
            found |= {name: tuple(chain[place:]) for place, name in enumerate([node.name, *chain])}
    return found


def pattern_for(node: str, followers: Mapping[str, tuple[str, ...]]) -> str:
    """Returns a pattern for a node under all names that it may run under.

    A node without a scope, which nothing is fused with, is named as it is; others by a regular
    expression, whatever they are inlined into.
    """
    # A file that is converted has the call in the names of its functions.
    scope = _scope(without_calls(node)) or _scope(node)
    fused = followers.get(node, ())
    if not scope and not fused:
        return f"{NODE}{node}"
    names = [re.escape(name.rpartition("/")[2]) for name in (node, *fused)]
    last = names[0] if len(names) == 1 else f"({'|'.join(names)})"
    return f"(^|/){re.escape(scope)}/{last}$" if scope else f"(^|/){last}$"


def _scope(node: str) -> str:
    return node.rpartition("/")[0]
