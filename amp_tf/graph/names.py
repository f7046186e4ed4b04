"""Names of nodes: the Keras layer that a node belongs to, patterns, and names for new nodes.

A node's name holds the name scopes in which it was made. They do not quite tell the layer: Keras 3
opens a scope twice for each call, so ``encoder/block_1`` is ``net_1/encoder_1/block_1_1`` in
``fit``, and the scope ``dense_1`` may be that of the layer ``dense``. So scopes are recorded while
a program's graphs are traced (:mod:`amp_tf.hooks.layer_paths`), each with the layer that opened it.
The graphs of files have no record, and there a number at the end of a scope may be TensorFlow's or
the layer's.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amp_tf.errors import GraphError
from amp_tf.oplists.fusions import FUSED_BEHIND
from amp_tf.oplists.table import PRODUCTS
from amp_tf.values import LAYER, NODE, is_layer_pattern, layer_components, node_name

# Names of scopes that TensorFlow adds. Layers may have names of the last three groups, too.
_KINDS = re.compile(
    r"(?P<added>((Stateful|Stateless)?PartitionedCall|gradient_tape)?(_\d+)?|__inference_.*|Func"
    r"|(Constant|Arithmetic|Layout)(Folding|Optimizer))"
    r"|(?P<branch>body|then|else|branch\d+)"
    r"|(?P<op>(while|cond)(_grad)?(_\d+)?)"
    r"|(?P<gradients>gradients(_\d+)?)"
)
_NUMBER = re.compile(r"_\d+")  # of the body of a lowered loop or branch: while/body/_12
_CALLS = re.compile(r"((Stateful|Stateless)?PartitionedCall(_\d+)?/)+")
_OF_GRADIENT = "_grad"  # TF1 has MatMul_grad/MatMul for what eager tapes call MatMul/MatMul
# The limit of recorded scopes: a program that makes models without end must not fill the memory.
_MOST = 50_000
_CLOSE = 0.5  # the least similarity of a suggested name, by difflib
_SHOWN = 3  # suggested names
_DEPTH = 2  # a model and a layer of it
_MOST_UNMATCHED = 10  # patterns in one line
_FUSED_AT_MOST = 3  # bias, normalization, activation

#: Ends the name of every cast that a rewrite inserts, as in TensorFlow's own pass.
CAST_SUFFIX = "AutoMixedPrecision"
#: Ends the names of variables' reads before loops, and of what brings them into the loop.
HOIST_SUFFIX = "AmpTfHoist"
#: Ends the names of the nodes that a fused product is split into.
SPLIT_SUFFIX = "AmpTfSplit"
_PART = re.compile(rf"(.+)-\w+-\d+-{SPLIT_SUFFIX}", re.DOTALL)

Matcher = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class KerasLayer:
    """A layer that opened a name scope.

    Attributes:
        path: Keras' ``layer.path``, which begins below a functional model; tf_keras has none, so
            there it is the names joined by slashes.
        names: the names of the layers around it, the outermost first, and its own.
    """

    path: str
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Place:
    """The place in the program where a node was made, according to its scopes.

    Attributes:
        parts: the scopes that TensorFlow did not add, the outermost first.
        named: ``parts``, and scopes that may belong to a loop, a branch or a layer.
        layers: the recorded layers of the innermost scope that a layer opened; several where layers
            of different graphs share it.
    """

    parts: tuple[str, ...]
    named: tuple[str, ...]
    layers: tuple[KerasLayer, ...]
    is_gradient: bool


class Scopes:
    """The record of one process: which layers opened which name scopes.

    Several graphs may use one scope.
    """

    def __init__(self) -> None:
        self._layers: dict[str, tuple[KerasLayer, ...]] = {}
        self._place_in = functools.lru_cache(_MOST)(self._read)  # forgets when the record grows

    def record(self, scope: str, layer: KerasLayer) -> None:
        """Notes that a layer opened a scope.

        Several layers may open one scope in different graphs; the latest comes first.

        Args:
            scope: its whole name, such as ``"net_1/lstm_1/while/lstm_cell_1"``.
            layer: the layer.
        """
        known = self._layers.get(scope, ())
        if not scope or known[:1] == (layer,):
            return
        if not known and len(self._layers) >= _MOST:
            self._layers.pop(next(iter(self._layers)))
        self._layers[scope] = (layer, *(other for other in known if other != layer))
        self._place_in.cache_clear()

    def forget(self) -> None:
        """Forgets everything."""
        self._layers = {}
        self._place_in.cache_clear()

    def paths(self) -> list[str]:
        """Returns the paths of all layers, each once."""
        layers = itertools.chain.from_iterable(self._layers.values())
        return list(dict.fromkeys(layer.path for layer in layers))

    def place(self, name: str) -> _Place:
        """Returns the place where a node was made."""
        return self._place_in(name.rpartition("/")[0])

    def _read(self, around: str) -> _Place:
        """Separates the scopes that TensorFlow added from those of layers.

        A recorded scope may begin at any part, because a loop's body repeats the scopes around the
        loop. A scope named like a loop, a branch or a gradient is a layer's only if the record has
        it from the beginning of a graph's names: the first part, or one behind a scope that
        TensorFlow added.
        """
        scopes = around.split("/") if around else []
        parts = []
        named = []
        layers: tuple[KerasLayer, ...] = ()
        begins = [0]
        is_gradient = False
        for place, scope in enumerate(scopes):
            kind = _kind(scope)
            starts = begins if kind else range(place + 1)
            opened = self._opening(scopes[: place + 1], starts)
            if not kind or opened or not _is_added(kind, scopes[place:], place in begins):
                parts.append(scope)
                named.append(scope)
                layers = opened or layers
                continue
            begins.append(place + 1)
            is_gradient |= scope.startswith("gradient")
            if kind == "op" and not _is_numbered(scopes[place:]):
                named.append(scope)
        return _Place(tuple(parts), tuple(named), layers, is_gradient)

    def _opening(self, scopes: Sequence[str], starts: Iterable[int]) -> tuple[KerasLayer, ...]:
        """Returns the recorded layers that opened the last of some scopes.

        The recorded name may begin at any of the starts; the first one in the record counts.
        """
        for start in starts:
            layers = self._layers.get("/".join(scopes[start:]))
            if layers:
                return layers
        return ()


@functools.lru_cache(maxsize=65_536)
def _kind(scope: str) -> str:
    """Returns the group of ``_KINDS`` that a scope's name is in, or an empty text."""
    found = _KINDS.fullmatch(scope)
    if found is None or found.lastgroup is None:
        return ""
    return found.lastgroup


def _is_added(kind: str, scopes: Sequence[str], is_first: bool) -> bool:
    """Tells whether TensorFlow added the first of some scopes, which no known layer opened.

    A branch's body has a number behind its name. A scope of gradients is the first of a graph's
    names, or is followed by names of forward nodes that end with ``_grad``.
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
    """Returns the name scopes around a node, the outermost first.

    The scopes that TensorFlow itself adds are left out.
    """
    return list(recorded.place(name).parts)


def scope_of(name: str) -> str:
    """Returns the scopes around a forward node, such as ``"functional_1/dense_1"``.

    A node without scopes gives its own name.
    """
    return "/".join(scopes(name)) or name.rpartition("/")[2]


def without_calls(name: str) -> str:
    """Returns a node's name in the function that it was inlined from."""
    found = _CALLS.match(name)
    if found is None:
        return name
    return name[found.end() :]


def is_gradient(name: str) -> bool:
    """Tells whether TensorFlow made a node to compute a gradient."""
    return recorded.place(name).is_gradient


def is_within(name: str, scope: str) -> bool:
    """Tells whether a node, or the forward node of a gradient, is somewhere inside a scope.

    Scopes that TensorFlow adds do not count.
    """
    return f"/{scope}/" in f"/{_whole(name)}/"


def _whole(name: str) -> str:
    """Returns a node's name without the scopes that TensorFlow adds.

    In the name of a gradient, the forward node's name comes before its own.
    """
    place = recorded.place(name)
    parts = [*place.parts, name.rpartition("/")[2]]
    if place.is_gradient:
        parts = [part.removesuffix(_OF_GRADIENT) for part in parts]
    return "/".join(parts)


def path_of(name: str) -> str:
    """Returns the recorded path of the innermost layer of a node, or an empty text."""
    layers = recorded.place(name).layers
    if not layers:
        return ""
    return layers[0].path


def layer_of(name: str) -> str:
    """Returns the layer of a node: its path in Keras where it was recorded, else a guess.

    A guess is the outermost scopes, such as ``"functional_1/dense_1"``; it is empty for a node
    without scopes.
    """
    return path_of(name) or "/".join(scopes(name)[:_DEPTH])


def matcher(pattern: str) -> Matcher:
    """Compiles a pattern to a predicate on names of nodes.

    - ``layer:PATH`` matches all nodes of a layer and of its gradient. Each name of the path is a
      regular expression, and the outermost names may be missing.
    - ``node:NAME`` matches the node that has this name in the function that it is inlined from,
      and the nodes that it is split into.
    - Any other pattern is a regular expression, searched in the node's name.
    """
    if pattern.startswith(NODE):
        wanted = node_name(pattern)
        return lambda name: wanted in name and without_calls(whole_of(name)) == wanted
    if is_layer_pattern(pattern):
        return _layer_matcher(pattern)
    search = re.compile(pattern).search
    return lambda name: search(name) is not None


def _layer_matcher(pattern: str) -> Matcher:
    components = layer_components(pattern)
    layer_is = [re.compile(component).fullmatch for component in components]
    scope_is = [re.compile(rf"(?:{component})(?:_\d+)?").fullmatch for component in components]
    known: dict[str, bool] = {}

    def is_in_layer(name: str) -> bool:
        scope = name.rpartition("/")[0]
        if scope not in known:
            place = recorded.place(name)
            paths: list[Sequence[str]] = []
            for layer in place.layers:
                paths += [layer.names, layer.path.split("/")]
            if paths:
                known[scope] = any(_holds(path, layer_is) for path in paths)
            else:
                known[scope] = _holds(place.parts, scope_is) or _holds(place.named, scope_is)
        return known[scope]

    return is_in_layer


def _holds(names: Sequence[str], tests: Sequence[Callable[[str], object]]) -> bool:
    """Tells whether consecutive names pass the tests, one each."""
    for start in range(len(names) - len(tests) + 1):
        if all(test(name) for test, name in zip(tests, names[start:], strict=False)):
            return True
    return False


def describe_unmatched(patterns: Iterable[str], names: Iterable[str]) -> str:
    """Lists the first patterns that matched no node, and how many more there are.

    A pattern for a layer is followed by the closest one that finds a layer.
    """
    patterns = list(patterns)
    paths = recorded.paths()
    if not paths and any(map(is_layer_pattern, patterns[:_MOST_UNMATCHED])):
        paths = _paths_of_scopes(names)
    found = []
    for pattern in patterns[:_MOST_UNMATCHED]:
        close: list[str] = []
        if is_layer_pattern(pattern):
            close = closest_layers("/".join(layer_components(pattern)), paths)
        if close:
            pattern = f"{pattern} (did you mean {LAYER}{close[0]}?)"
        found.append(pattern)
    more = len(patterns) - _MOST_UNMATCHED
    if more > 0:
        found.append(f"and {more:,} more")
    return ", ".join(found)


def _paths_of_scopes(names: Iterable[str]) -> list[str]:
    """Returns all scopes around nodes as paths that layers may have."""
    paths: list[str] = []
    for scope in dict.fromkeys(name.rpartition("/")[0] for name in names):
        parts = scopes(f"{scope}/")
        paths += ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return paths


def closest_layers(path: str, paths: Iterable[str]) -> list[str]:
    """Returns up to three paths that find a layer and are spelled like a given one.

    A path is whole, or has as many consecutive names of one as the given path. The closest comes
    first.
    """
    length = path.count("/") + 1
    known: dict[str, None] = {}
    for whole in paths:
        names = whole.split("/")
        known[whole] = None
        for start in range(len(names) - length + 1):
            known["/".join(names[start : start + length])] = None
    return difflib.get_close_matches(path, list(known), n=_SHOWN, cutoff=_CLOSE)


class FreshNames:
    """Makes names that no node has."""

    def __init__(self, taken: Iterable[str], suffix: str) -> None:
        self._taken = set(taken)
        self._suffix = suffix

    def make(self, stem: str) -> str:
        """Returns a name that begins with the stem; a number stands between it and the suffix."""
        names = (f"{stem}-{number}-{self._suffix}" for number in itertools.count())
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name


def whole_of(name: str) -> str:
    """Returns the name of the fused product that a node was a part of, or the node's own."""
    # The suffix is looked at first, because most names lack it, and that is quicker.
    if name.endswith(SPLIT_SUFFIX) and (part := _PART.fullmatch(name)):
        return part[1]
    return name


def missing_node(wanted: str, names: Sequence[str], where: str) -> GraphError:
    """Returns the error for a name that no node has; it lists the closest names."""
    fix = "amp-tf explain --all lists all names"
    close = closest(wanted, names)
    if close:
        fix = f"The closest names: {', '.join(close)}"
    return GraphError(f"the graph has no node {wanted!r}", where=where, fix=fix)


def closest(wanted: str, names: Sequence[str]) -> list[str]:
    """Returns up to three names that are spelled like a wanted one.

    Names with the wanted one between slashes come first: Keras puts a model's name before its
    layers'.
    """
    is_inside = re.compile(rf"/{re.escape(wanted)}(_\d+)?(/|$)").search
    inside = sorted(filter(is_inside, names), key=len)
    similar = difflib.get_close_matches(wanted, names, n=_SHOWN, cutoff=_CLOSE)
    return list(dict.fromkeys([*inside, *similar]))[:_SHOWN]


def find_followers(graph: Any) -> Mapping[str, tuple[str, ...]]:
    """Finds the nodes that may be fused with a product, each the only reader of the one before.

    Returns for each product, and for each of these nodes, the nodes behind it, in order.

    TensorFlow's remapper gives a fused node the name of the last one: ``dense/MatMul``,
    ``dense/BiasAdd`` and ``dense/Relu`` become a ``_FusedMatMul`` called ``dense/Relu``. So a
    pattern for one must find those behind it, too.
    """
    body = graph.node_def if hasattr(graph, "node_def") else graph.node
    nodes = {node.name: node for node in body}
    readers: dict[str, list[str]] = {}
    for node in nodes.values():
        for text in node.input:
            if not text.startswith("^"):
                source = text.partition(":")[0]
                readers.setdefault(source, []).append(node.name)
    found = {}
    for node in nodes.values():
        if node.op not in PRODUCTS:
            continue
        chain = [node.name]
        while len(chain) <= _FUSED_AT_MOST and len(readers.get(chain[-1], ())) == 1:
            reader = readers[chain[-1]][0]
            if nodes[reader].op not in FUSED_BEHIND or _scope(reader) != _scope(node.name):
                break
            chain.append(reader)
        for place, name in enumerate(chain):
            found[name] = tuple(chain[place + 1 :])
    return found


def pattern_for(node: str, followers: Mapping[str, tuple[str, ...]]) -> str:
    """Returns a pattern for a node that holds under every name it may get.

    A node without scopes and followers is given by its name. Others get a regular expression, which
    finds them whatever they are inlined into.
    """
    # In a file that is converted the node stands in its function, without the calls' scopes.
    scope = _scope(without_calls(node)) or _scope(node)
    fused = followers.get(node, ())
    if not scope and not fused:
        return f"{NODE}{node}"
    names = [re.escape(name.rpartition("/")[2]) for name in (node, *fused)]
    any_name = "|".join(names)
    if len(names) > 1:
        any_name = f"({any_name})"
    if scope:
        any_name = f"{re.escape(scope)}/{any_name}"
    return f"(^|/){any_name}$"


def _scope(node: str) -> str:
    return node.rpartition("/")[0]
