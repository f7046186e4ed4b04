"""Blockers: what keeps work in float32, each with what would become 16 bit without it.

A node that stays in float32 has a root: the deny-list op from which the decision came, a missing
kernel, a name rule. The value of a root is not guessed from the nodes that name it: the graph is
painted again without it. Roots whose nodes have most operations are tried first.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amp_tf.config import LIST_NAMES, variable_of
from amp_tf.graph.names import layer_of, matcher
from amp_tf.oplists.table import ALLOW, FUSED_PRODUCTS, INFER, PRODUCTS, ROWS
from amp_tf.oplists.table import DENY as DENY_LIST
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.paint import NO_CHANGE, RULES, Change
from amp_tf.painting.reasons import Rule
from amp_tf.reporting.figures import Basis, GraphFigures

MOST = 12  #: roots that are tried
TOGETHER = 3  #: how many of the best are tried together

#: What keeps work in float32, as the document has it.
DENY, NO_LIST, KERNEL, NAME, SCOPE = "deny list", "no list", "no kernel", "name rule", "scope"
DEVICE, FETCHED, COST, SHAPE = "device", "fed or fetched", "not faster", "unknown shape"
ACCURACY, STRUCTURE = "accuracy", "structure"

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
    """Why nodes stay in float32."""

    kind: str  #: one of the words above
    what: str  #: the op, the pattern, the layer, the device, or the rule in words
    removal: Change = NO_CHANGE  #: what removes it, where that is the same in all graphs
    why: str = ""  #: the rules in words, for accuracy

    @property
    def settings(self) -> Change:
        """The change of settings that removes it; empty where none does."""
        return self.removal if self.kind in (DENY, NO_LIST, NAME) else NO_CHANGE

    @property
    def remedy(self) -> str:
        """The variable or the line that removes it, or why there is none."""
        if self.settings:
            danger = (
                f", but it {_DANGER_OF[self.what]}"
                if self.removal.added and self.what in _DANGER_OF
                else ""
            )
            return f"{settings_words(self.settings)}{danger}"
        no_kernel = f"TensorFlow has no 16-bit kernel of {self.what} on this device"
        if self.what in FUSED_PRODUCTS:
            no_kernel = (
                f"TensorFlow fused products with what follows, and {self.what} has no 16-bit "
                "kernel on this CPU"
            )
        return {
            KERNEL: f"nothing here, because {no_kernel}",
            SCOPE: f'take {self.what or "it"} out of amp_tf.scope("float32") in the model',
            DEVICE: f"take it off {self.what} in the model (tf.device)",
            FETCHED: "fetch what comes after it, or do not feed or fetch it",
            COST: (
                f"{variable_of('precision')}=bfloat16 converts it anyway, but the cost model "
                "expects no gain"
            ),
            SHAPE: "give the input a static shape; the gain takes each unknown size for 64",
            ACCURACY: (
                f"{variable_of('force_f16')}=<its name>, at the price of accuracy: {self.why}"
            ),
        }.get(self.kind, "nothing")

    def change(self, graph: GraphFigures, nodes: Iterable[int]) -> Change:
        """The change that removes the root from one graph, in which some nodes name it."""
        if self.kind in (SCOPE, DEVICE, FETCHED):
            return Change(nodes=frozenset(graph.view.names[node] for node in nodes))
        if self.kind == COST:
            products = {graph.view.ops[node] for node in nodes} & PRODUCTS
            listed = lists_of(graph.basis.resolution)
            unlisted = frozenset((f"{ALLOW}_add", op) for op in products.difference(listed))
            return Change(rules=frozenset({"cost model"}), added=unlisted)
        return self.removal


def settings_words(change: Change) -> str:
    """The variables by which a user makes a change of settings."""
    words = []
    for field in sorted({field for field, _ in change.dropped}):
        names = sorted(name for of, name in change.dropped if of == field)
        words.append(f"drop {' and '.join(map(repr, names))} from {variable_of(field)}")
    words += [f"{variable_of(field)}={shlex.quote(name)}" for field, name in sorted(change.added)]
    return " and ".join(words)


Places = dict[int, list[int]]  # the nodes that name a root, by graph number


def find_blockers(
    graphs: Sequence[GraphFigures], *, seconds: float = math.inf
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Ranks what keeps work in float32, by what it is worth; as many roots are tried as fit in some
    seconds.

    Returns the document's ``blockers``, first those that were tried, and its ``together``: some of
    the best, ``None`` where there are fewer than two or the time is up. The graphs have a basis
    each.
    """
    end, last, longest = time.monotonic() + seconds, time.monotonic(), 0.0

    def has_time() -> bool:  # for another try, which may take as long as the longest so far
        nonlocal last, longest
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        return now + longest < end

    roots: dict[Root, Places] = {}
    for number, graph in enumerate(graphs):
        for node in range(graph.view.node_count):
            if not graph.is_f16[node] and (root := root_of(graph, node)) is not None:
                roots.setdefault(root, {}).setdefault(number, []).append(node)
    found: list[tuple[Root, dict[str, Any]]] = []
    for root, places in roots.items():
        work = [  # of the computing nodes that name it; for a shape, also of those of unknown size
            (float(graphs[number].figures.work[node]), number, node)
            for number, nodes in places.items()
            for node in nodes
            if graphs[number].figures.work[node] > 0 or root.kind == SHAPE
        ]
        if work:
            _, number, node = max(work)
            row = {
                "kind": root.kind,
                "what": root.what,
                "nodes": len(work),
                "operations": sum(row[0] for row in work),
            }
            gains = dict.fromkeys(
                ("gain", "gain_products", "gain_nodes")
            )  # what becomes 16 bit if it is taken away
            row |= {"example": graphs[number].view.names[node], **gains, "remedy": root.remedy}
            found.append((root, row))
    found.sort(key=lambda each: -each[1]["operations"])
    for root, row in [each for each in found if each[0].kind != STRUCTURE][:MOST]:
        if has_time():
            gain, products, nodes = _gain(graphs, [(root, roots[root])])
            row |= {"gain": gain, "gain_products": products, "gain_nodes": nodes}
    found.sort(
        key=lambda each: (
            each[1]["gain"] is None,
            -(each[1]["gain"] or 0.0),
            -each[1]["operations"],
        )
    )
    best = [root for root, row in found if (row["gain"] or 0.0) > 0 and root.kind != COST][
        :TOGETHER
    ]
    together = None
    if len(best) > 1 and has_time():
        shown = [{"kind": root.kind, "what": root.what} for root in best]
        together = {
            "roots": shown,
            "gain": _gain(graphs, [(root, roots[root]) for root in best])[0],
        }
    return [row for _, row in found], together


def _gain(
    graphs: Sequence[GraphFigures], removed: Sequence[tuple[Root, Places]]
) -> tuple[float, float, int]:
    """What becomes 16 bit in all graphs if some roots are removed together."""
    gains = []
    for number, graph in enumerate(graphs):
        change = NO_CHANGE
        for root, places in removed:
            if number in places:
                change = change.plus(root.change(graph, places[number]))
        if change:
            gains.append(graph.gain(change))
    operations, products, nodes = map(sum, zip(*gains, strict=True))
    return operations, products, nodes


def root_of(graph: GraphFigures, node: int) -> Root | None:
    """What keeps a node in float32; ``None`` where nothing near it becomes 16 bit either."""
    rule = graph.reasons[node].rule
    if rule in _NO_ROOT:
        return None
    origin = graph.report.painting.trail(node)[-1] if graph.reasons[node].cause else node
    rule = graph.reasons[origin].rule
    if rows := [row.name for row in RULES if rule in row.reasons]:
        return Root(
            ACCURACY, rows[0], Change(rules=frozenset(rows)), rule.words.partition(": {cause}")[0]
        )
    kind = _KIND_OF.get(rule, STRUCTURE)
    name, op = graph.view.names[origin], graph.view.ops[origin]
    if kind is COST and math.isnan(graph.figures.elements[origin]):
        return Root(SHAPE, layer_of(name), Change(shapes=True))
    if kind is NAME:
        patterns = [
            pattern for pattern in graph.basis.config.keep_float32 if matcher(pattern)(name)
        ]
        dropped = frozenset(("keep_float32", pattern) for pattern in patterns)
        return Root(NAME, ", ".join(patterns), Change(dropped=dropped))
    if kind in (DENY, NO_LIST):
        return Root(kind, op, _listing(graph.basis, op))
    if kind is KERNEL:
        return Root(kind, op, Change(kernels=frozenset({op})))
    what = {
        SCOPE: layer_of(name),
        DEVICE: graph.view.devices[origin],
        STRUCTURE: rule.words.replace("{cause}", "it"),
    }
    return Root(kind, what.get(kind, ""))


def _listing(basis: Basis, op: str) -> Change:
    """The change of settings that puts an op on the allow list if it is a product, else on the
    infer list.

    Where the user moved the op, dropping that may be enough.
    """
    fields = [f"{name}_{action}" for name in LIST_NAMES for action in ("add", "remove")]
    moves = frozenset((field, op) for field in fields if op in getattr(basis.config, field))
    dropped = Change(dropped=moves)
    after = lists_of(basis.resolution.under(dropped.config(basis.config)))
    if moves and after.get(op, DENY_LIST) != DENY_LIST:
        return dropped
    home = ALLOW if op in PRODUCTS else INFER
    return dropped.plus(Change(added=frozenset({(f"{home}_add", op)})))


def lists_of(resolution: Resolution) -> Mapping[str, str]:
    """The list of each op; empty where nothing is converted."""
    return resolution.target.lists.list_of if resolution.target else {}
