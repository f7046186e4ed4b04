"""Names of nodes: the patterns that find them, the closest ones, and names for new nodes."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amp_tf.errors import GraphError
from amp_tf.graph.layers import recorded, scopes
from amp_tf.oplists.fusions import FUSED_BEHIND
from amp_tf.oplists.table import PRODUCTS
from amp_tf.values import LAYER, NODE, is_layer_pattern, layer_components, node_name

_CALLS = re.compile(r"((Stateful|Stateless)?PartitionedCall(_\d+)?/)+")
_CLOSE = 0.5  # the least similarity of a suggested name, by difflib
_SHOWN = 3  # suggested names
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


def node_of(text: str) -> str:
    """Returns the name of the node that a tensor's name, or the text of an input, holds."""
    return text.removeprefix("^").partition(":")[0]


def without_calls(name: str) -> str:
    """Returns a node's name in the function that it was inlined from."""
    found = _CALLS.match(name)
    if found is None:
        return name
    return name[found.end() :]


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
    """Compiles a layer's pattern; recorded layers count before name scopes."""
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
        path = "/".join(layer_components(pattern))
        if is_layer_pattern(pattern):
            close = closest_layers(path, paths)
        if close and close[0] != path:  # else the layer is in graphs that are not converted
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
                readers.setdefault(node_of(text), []).append(node.name)
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
