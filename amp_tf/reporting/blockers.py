"""Blockers: the root causes that keep work in float32, each with the work it keeps there.

A node that stays in float32 has a root cause, here a *root*: the deny-list op from which the
decision came, a missing kernel, a name rule. The value of a root is not guessed from the nodes that
name it: the graph is painted again without it. Roots whose nodes have most operations are tried
first.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import time
from collections.abc import Iterable, Mapping

import numpy as np

from amp_tf.config import LIST_NAMES, AmpConfig, variable_of
from amp_tf.graph.layers import layer_of
from amp_tf.graph.names import matcher
from amp_tf.oplists.table import ALLOW, FUSED_PRODUCTS, INFER, PRODUCTS, ROWS
from amp_tf.oplists.table import DENY as DENY_LIST
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.paint import NO_CHANGE, RULES, Change
from amp_tf.painting.reasons import Rule
from amp_tf.reporting.figures import Basis
from amp_tf.reporting.files import Row
from amp_tf.reporting.graphs import GraphReport, Graphs

MOST = 12  #: roots that are tried
TOGETHER = 3  #: how many of the best are tried together
_GAINS = ("gain", "gain_products", "gain_nodes")  # the figures of a root that was tried

#: The kinds of roots, by their names in the document.
DENY = "deny list"
NO_LIST = "no list"
KERNEL = "no kernel"
NAME = "name rule"
SCOPE = "scope"
DEVICE = "device"
FETCHED = "fed or fetched"
COST = "not faster"
SHAPE = "unknown shape"
ACCURACY = "accuracy"
STRUCTURE = "structure"

_KIND_OF = {
    Rule.DENY_LIST: DENY,
    Rule.NOT_LISTED: NO_LIST,
    Rule.NO_KERNEL: KERNEL,
    Rule.NO_FUSED_KERNEL: KERNEL,
    Rule.TYPE_NOT_ALLOWED: KERNEL,
    Rule.KEPT_BY_NAME: NAME,
    Rule.KEPT_BY_SCOPE: SCOPE,
    Rule.OTHER_DEVICE: DEVICE,
    Rule.PRESERVED: FETCHED,
    Rule.DOES_NOT_PAY: COST,
}
_NO_ROOT = frozenset(
    (
        Rule.NO_ALLOW_NEIGHBOUR,
        Rule.NO_FLOAT32,
        Rule.NOTHING_TO_CONVERT,
        Rule.NO_TARGET,
        Rule.SCALES_FILTER,
    )
)
_DANGER_OF = {row.op: row.why for row in ROWS if row.op_list == DENY_LIST}


@dataclasses.dataclass(frozen=True)
class Root:
    """A root cause: the reason for which nodes stay in float32.

    Attributes:
        kind: one of the words above.
        what: the op, the pattern, the layer, the device, or the rule in words.
        removal: the change that removes it, where that is the same in all graphs.
        why: for accuracy, the rules in words.
    """

    kind: str
    what: str
    removal: Change = NO_CHANGE
    why: str = ""

    @property
    def settings(self) -> Change:
        """The change of settings that removes it; empty where none does."""
        if self.kind in (DENY, NO_LIST, NAME):
            return self.removal
        return NO_CHANGE

    @property
    def remedy(self) -> str:
        """The variable or the line that removes it, or why there is none."""
        if self.settings:
            words = settings_words(self.settings)
            if self.removal.added and self.what in _DANGER_OF:
                return f"{words}, but it {_DANGER_OF[self.what]}"
            return words
        if self.kind == KERNEL and self.what in FUSED_PRODUCTS:
            return (
                "nothing here, because TensorFlow fused products with what follows, and "
                f"{self.what} has no 16-bit kernel on this CPU"
            )
        remedy = _REMEDY_OF.get(self.kind, "nothing")
        return remedy.format(what=self.what or "it", why=self.why)

    def change(self, graph: GraphReport, nodes: Iterable[int]) -> Change:
        """Returns the change that removes the root from one graph, in which some nodes name it."""
        if self.kind in (SCOPE, DEVICE, FETCHED):
            return Change(nodes=frozenset(graph.view.names[node] for node in nodes))
        if self.kind == COST:
            products = {graph.view.ops[node] for node in nodes} & PRODUCTS
            unlisted = products.difference(lists_of(graph.known_basis.resolution))
            added = frozenset((f"{ALLOW}_add", op) for op in unlisted)
            return Change(rules=frozenset({"cost model"}), added=added)
        return self.removal


#: How to remove a root of each kind that no setting of lists or names removes.
_REMEDY_OF = {
    KERNEL: "nothing here, because TensorFlow has no 16-bit kernel of {what} on this device",
    SCOPE: 'take {what} out of amp_tf.scope("float32") in the model',
    DEVICE: "take it off {what} in the model (tf.device)",
    FETCHED: "fetch what comes after it, or do not feed or fetch it",
    COST: (
        f"{variable_of('precision')}=bfloat16 converts it anyway, but the cost model expects no "
        "gain"
    ),
    SHAPE: "give the input a static shape; the gain takes each unknown size for 64",
    ACCURACY: f"{variable_of('force_f16')}=<its name>, at the price of accuracy: {{why}}",
}


def settings_words(change: Change) -> str:
    """Returns the variables by which a user makes a change of settings."""
    dropped: dict[str, list[str]] = {}
    for field, name in sorted(change.dropped):
        dropped.setdefault(field, []).append(repr(name))
    words = []
    for field, names in dropped.items():
        words.append(f"drop {' and '.join(names)} from {variable_of(field)}")
    for field, name in sorted(change.added):
        words.append(f"{variable_of(field)}={shlex.quote(name)}")
    return " and ".join(words)


class _Clock:
    """Says whether another try fits into the time; it may take as long as the longest so far."""

    def __init__(self, seconds: float) -> None:
        self._last = time.monotonic()
        self._end = self._last + seconds
        self._longest = 0.0

    def has_time(self) -> bool:
        now = time.monotonic()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        return now + self._longest < self._end


Places = dict[int, list[int]]  # the nodes that name a root, by graph number


def find_blockers(graphs: Graphs, *, seconds: float = math.inf) -> tuple[list[Row], Row | None]:
    """Ranks the roots that keep work in float32 by the work that becomes 16 bit without them.

    Args:
        graphs: graphs with a basis.
        seconds: the time in which roots may be tried.

    Returns:
        The document's ``blockers``, first those that were tried, and its ``together``: some of the
        best roots, ``None`` where there are fewer than two or the time is up.
    """
    clock = _Clock(seconds)
    # Find the roots, those with most operations first.
    roots = _find_roots(graphs)
    rows: dict[Root, Row] = {}
    for root, places in roots.items():
        row = _describe(graphs, root, places)
        if row is not None:
            rows[root] = row
    ranked = sorted(rows, key=lambda root: -rows[root]["operations"])
    # Paint the graphs without the first of them.
    tried = [root for root in ranked if root.kind != STRUCTURE]
    for root in tried[:MOST]:
        if clock.has_time():
            gain = _gain(graphs, {root: roots[root]})
            rows[root].update(zip(_GAINS, gain, strict=True))
    ranked.sort(key=lambda root: _rank(rows[root]))
    # Paint them without the best ones together.
    together: dict[Root, Places] = {}
    for root in ranked:
        is_good = (rows[root]["gain"] or 0.0) > 0 and root.kind != COST
        if is_good and len(together) < TOGETHER:
            together[root] = roots[root]
    shown = [rows[root] for root in ranked]
    if len(together) < 2 or not clock.has_time():
        return shown, None
    names = [{"kind": root.kind, "what": root.what} for root in together]
    return shown, {"roots": names, "gain": _gain(graphs, together)[0]}


def _find_roots(graphs: Graphs) -> dict[Root, Places]:
    """Finds the roots of all graphs, with the nodes that name them."""
    roots: dict[Root, Places] = {}
    for number, graph in enumerate(graphs):
        for node in np.flatnonzero(~graph.is_f16).tolist():
            root = root_of(graph, node)
            if root is not None:
                roots.setdefault(root, {}).setdefault(number, []).append(node)
    return roots


def _describe(graphs: Graphs, root: Root, places: Places) -> Row | None:
    """Describes a root before it is tried; ``None`` where no node that computes names it.

    For an unknown shape, nodes whose operations are unknown count, too.
    """
    count = 0
    operations = 0.0
    largest = (-1.0, 0, 0)
    for number, nodes in places.items():
        work = graphs[number].figures.work
        for node in nodes:
            if work[node] > 0 or root.kind == SHAPE:
                count += 1
                operations += float(work[node])
                largest = max(largest, (float(work[node]), number, node))
    if not count:
        return None
    _, number, node = largest
    return {
        "kind": root.kind,
        "what": root.what,
        "nodes": count,
        "operations": operations,
        "example": graphs[number].view.names[node],
        **dict.fromkeys(_GAINS),
        "remedy": root.remedy,
    }


def _rank(row: Row) -> tuple[bool, float, float]:
    """Returns a sort key: tried roots first, by their gain, then by operations."""
    return row["gain"] is None, -(row["gain"] or 0.0), -row["operations"]


def _gain(graphs: Graphs, removed: Mapping[Root, Places]) -> tuple[float, float, int]:
    """Counts what becomes 16 bit in all graphs if some roots are removed together.

    Returns:
        Operations of all nodes, operations of products, and the number of nodes.
    """
    operations = 0.0
    products = 0.0
    nodes = 0
    for number, graph in enumerate(graphs):
        change = NO_CHANGE
        for root, places in removed.items():
            if number in places:
                change = change.plus(root.change(graph, places[number]))
        if change:
            gain = graph.gain(change)
            operations += gain[0]
            products += gain[1]
            nodes += gain[2]
    return operations, products, nodes


def root_of(graph: GraphReport, node: int) -> Root | None:
    """Finds what keeps a node in float32; ``None`` where nothing near it becomes 16 bit either."""
    reason = graph.reasons[node]
    if reason.rule in _NO_ROOT:
        return None
    # The decision came from an origin, if the reason names a cause.
    origin = node
    if reason.cause:
        origin = graph.painting.first_cause(node)
    name = graph.view.names[origin]
    op = graph.view.ops[origin]
    rule = graph.reasons[origin].rule
    rows = [row.name for row in RULES if rule in row.reasons]
    if rows:
        words = rule.words.partition(": {cause}")[0]
        return Root(ACCURACY, rows[0], Change(rules=frozenset(rows)), words)
    kind = _KIND_OF.get(rule, STRUCTURE)
    if kind == COST and math.isnan(graph.figures.elements[origin]):
        return Root(SHAPE, layer_of(name), Change(shapes=True))
    if kind == NAME:
        dropped = matching_patterns(graph.known_basis.config, "keep_float32", name)
        patterns = [pattern for _, pattern in dropped]
        return Root(NAME, ", ".join(patterns), Change(dropped=frozenset(dropped)))
    if kind in (DENY, NO_LIST):
        return Root(kind, op, _listing(graph.known_basis, op))
    if kind == KERNEL:
        return Root(kind, op, Change(kernels=frozenset({op})))
    what = {
        SCOPE: layer_of(name),
        DEVICE: graph.view.devices[origin],
        STRUCTURE: rule.words.replace("{cause}", "it"),
    }
    return Root(kind, what.get(kind, ""))


def matching_patterns(config: AmpConfig, field: str, name: str) -> list[tuple[str, str]]:
    """Returns the patterns of a setting that match a node's name, each with the setting."""
    found = []
    for pattern in getattr(config, field):
        if matcher(pattern)(name):
            found.append((field, pattern))
    return found


def _listing(basis: Basis, op: str) -> Change:
    """Returns the settings that list an op: on the allow list if it is a product, else on infer.

    If the user moved the op, it may be enough to drop the move.
    """
    moves = set()
    for name in LIST_NAMES:
        for field in (f"{name}_add", f"{name}_remove"):
            if op in getattr(basis.config, field):
                moves.add((field, op))
    dropped = Change(dropped=frozenset(moves))
    if dropped:
        after = lists_of(basis.resolution.under(dropped.config(basis.config)))
        if after.get(op, DENY_LIST) != DENY_LIST:
            return dropped
    home = INFER
    if op in PRODUCTS:
        home = ALLOW
    return dropped.plus(Change(added=frozenset({(f"{home}_add", op)})))


def lists_of(resolution: Resolution) -> Mapping[str, str]:
    """Returns the list of each op; empty where nothing is converted."""
    if resolution.target is None:
        return {}
    return resolution.target.lists.list_of
