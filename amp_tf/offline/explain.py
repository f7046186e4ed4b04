"""Explains one node: its precision, the rule, the trail of the decision, and what would change it.

A node in float32 has a root cause, as in :mod:`amp_tf.reporting.blockers`. Proposals are tried, not
guessed: the rewrite's own step (:func:`amp_tf.rewriting.pipeline.decide`) decides the graph again
under the change. As in ``amp-tf rewrite``, graphs without shapes are not folded; those of a running
program get shapes from Grappler, and are.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Container, Iterable, Mapping
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import OpListError
from amp_tf.graph.datatypes import Node
from amp_tf.graph.inference import BatchShapes
from amp_tf.graph.names import find_followers, matcher, missing_node, pattern_for
from amp_tf.graph.reader import read_function, read_graph
from amp_tf.oplists import op_names
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.op_names import find_registered
from amp_tf.painting.paint import NO_CHANGE, Change
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.precision import Precision
from amp_tf.reporting.blockers import (
    Root,
    lists_of,
    matching_patterns,
    root_of,
    settings_words,
)
from amp_tf.reporting.graphs import GraphReport
from amp_tf.reporting.text import plural
from amp_tf.rewriting.arguments import check_arguments
from amp_tf.rewriting.form import Form, Job
from amp_tf.rewriting.pipeline import decide, pause_garbage_collector, settle
from amp_tf.rewriting.recording import report_of
from amp_tf.values import check_batch

_NAME_A_TARGET = (
    "Nothing is converted here unless it is named. Explain it with --precision float16 --target "
    "gpu, as a GPU would run it, or with --precision bfloat16, as this CPU would."
)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The explanation of one node; its text is that of ``amp-tf explain``.

    Attributes:
        name: the node.
        op: its op.
        new_op: the op that folding normalization turned it into; else ``op``.
        op_list: the list that its op is on, empty for none.
        precision: the precision of its result.
        reason: the reason for that.
        trail: the names of the nodes along which the decision came, the node first; one name where
            the node decided alone.
        own_change: adds a pattern for this node alone, if that gives it the other precision; else
            empty.
        change: changes a setting that gives it, and others, the other precision; empty if none
            does.
        remedy: says in words how a float32 node could become 16 bit if no setting does it.
        matches: how many nodes the pattern for this one finds.
        registered: why its library registered the op for the list; empty where none did, or a
            setting moved the op.
    """

    name: str
    op: str
    new_op: str
    op_list: str
    precision: Precision
    reason: Reason
    trail: tuple[str, ...]
    own_change: Change
    change: Change
    remedy: str = ""
    matches: int = 1
    registered: str = ""

    def __str__(self) -> str:
        op = self.op
        if self.new_op != op:
            op = f"{op}, folded to {self.new_op}"
        if self.reason.rule is Rule.NO_TARGET:  # no lists count
            return f"{self.name} ({op}) {self._state()}: {self.reason}.\n{_NAME_A_TARGET}"
        listed = "on no list"
        if self.op_list:
            listed = f"on the {self.op_list} list"
        lines = [f"{self.name} ({op}, {listed}) {self._state()}: {self.reason}."]
        if self.registered:
            lines.append(f"The op was registered for that list because it {self.registered}.")
        if self.reason.balance is not None:
            lines.append(
                "These are the cost model's estimates. To convert the node anyway, name the "
                "precision: --precision bfloat16, or AMP_TF_PRECISION=bfloat16."
            )
        if len(self.trail) > 1:
            lines.append("The decision came from node to node: " + " <- ".join(self.trail))
        if self._is_decided():
            lines += self._proposals()
        return "\n".join(lines)

    def _is_decided(self) -> bool:
        """Tells whether amp_tf decides the node's type.

        It does not where the type is an integer, or 16 bit by the user's choice, or an earlier
        rewrite decided.
        """
        return self.reason.rule not in (Rule.NO_FLOAT32, Rule.ROUNDED_BEFORE)

    def _state(self) -> str:
        if self._is_decided():
            return f"computes in {self.precision.value}"
        return "is left as it is"

    def _proposals(self) -> list[str]:
        """Returns a line for each way to compute the node in the other precision."""
        other = "16 bit"
        if self.precision.is_f16:
            other = "float32"
        lines = []
        if self.own_change:
            nodes = "this node alone"
            if self.matches > 1:
                others = plural(self.matches - 1, "other node")
                nodes = f"this node, and {others} that the pattern matches,"
            lines.append(f"To compute {nodes} in {other}: {settings_words(self.own_change)}")
        if self.change:
            words = settings_words(self.change)
            lines.append(f"To compute it in {other}, and all like it: {words}")
        if not lines and self.remedy:
            lines.append(f"To compute it in {other}: {self.remedy}")
        return lines or [f"No setting makes it {other}."]


@pause_garbage_collector()
def explain(
    graph: Any,
    node_name: str,
    config: AmpConfig,
    *,
    preserve: tuple[str, ...] = (),
    hardware: Hardware | None = None,
    library: Any = None,
    where: str = "",
    batch: int | tuple[int, int] | None = None,
    beyond_range: Mapping[str, Container[str]] | None = None,
) -> Explanation:
    """Explains a node of a ``GraphDef`` or ``FunctionDef``.

    Normalization is folded where the nodes carry their shapes.

    Args:
        graph: the GraphDef or FunctionDef.
        node_name: the node.
        config: the settings.
        preserve, hardware, library, batch, beyond_range: as for :func:`amp_tf.rewrite`.
        where: the origin of the graph, such as a file, for the error.

    Raises:
        GraphError: the graph has no node of that name; the message names the closest ones.
        OpListError: a change of the lists names an op that TensorFlow does not know.
    """
    names = check_arguments(graph, config, preserve, hardware, library, None)
    config = dataclasses.replace(config, report_path="-")  # the report gets a basis for blockers
    resolution = settle(config, hardware)
    is_function = hasattr(graph, "node_def")
    if not is_function:
        library = graph.library
    job = Job.of(
        config,
        resolution,
        library,
        names,
        is_callers=True,
        batches=BatchShapes(graph, library, check_batch(batch, where="explain(batch=…)")),
        beyond_range=beyond_range or {},
    )
    read = read_function if is_function else read_graph
    as_given = job.form(read(graph, job.templates), None)
    report = report_of(*decide(as_given))
    view = report.view
    if node_name not in view.number_of:
        place = where or "graph"
        if view.function:
            place = f"function {view.function!r}"
        raise missing_node(node_name, view.names, place)
    own_pattern = pattern_for(node_name, find_followers(graph))
    return _explain_node(as_given, report, node_name, own_pattern)


def _explain_node(as_given: Form, report: GraphReport, name: str, own_pattern: str) -> Explanation:
    """Describes a node, and tries changes that may give it the other precision.

    Args:
        as_given: the graph as it was given.
        report: its report.
        name: the node.
        own_pattern: a pattern for this node alone.
    """
    view = report.view
    node = view.number_of[name]
    op = view.ops[node]
    old_op = op  # of a node that folding made
    if name in as_given.view.number_of:
        old_op = as_given.view.ops[as_given.view.number_of[name]]
    op_list = lists_of(as_given.job.resolution).get(op, "")
    row = find_registered(op)
    registered = ""
    if row and op_list == row.op_list:
        registered = row.why
    is_f16 = bool(report.is_f16[node])
    trail = report.painting.trail(node)
    # The changes of a pattern for this node, of other settings, and of its root cause.
    field = "keep_float32"
    root = None
    if not is_f16:
        field = "force_f16"
        root = root_of(report, node)
    own = Change(added=frozenset({(field, own_pattern)}))
    remedy = ""
    if root and _first_to_turn(as_given, name, is_f16, [root.change(report, trail[-1:])]):
        remedy = root.remedy
    return Explanation(
        name=name,
        op=old_op,
        new_op=op,
        op_list=op_list,
        precision=report.precision_of(is_f16),
        reason=report.reasons[node],
        trail=tuple(view.names[before] for before in trail),
        own_change=_first_to_turn(as_given, name, is_f16, [own]),
        change=_first_to_turn(as_given, name, is_f16, _changes(report, node, root)),
        remedy=remedy,
        registered=registered,
        matches=sum(map(matcher(own_pattern), view.names)),
    )


def _changes(report: GraphReport, node: Node, root: Root | None) -> list[Change]:
    """Returns the changes of settings that may give a node the other precision.

    Nodes like it may get it, too. The narrowest change comes first.
    """
    op = report.view.ops[node]
    if report.reasons[node].rule is Rule.FORCED_BY_NAME:
        name = report.view.names[node]
        dropped = matching_patterns(report.known_basis.config, "force_f16", name)
        return [Change(dropped=frozenset(dropped))]
    if report.is_f16[node]:
        return [Change(added=frozenset({("deny_add", op)}))]
    changes = [Change(added=frozenset({("clear_add", op)}))]
    if root:
        changes.append(root.settings)
    return [*changes, Change(added=frozenset({("allow_add", op)}))]


def _first_to_turn(as_given: Form, name: str, is_f16: bool, changes: Iterable[Change]) -> Change:
    """Returns the first change under which a node has the other precision; else no change."""
    if not as_given.job.converts:
        return NO_CHANGE
    for change in changes:
        with contextlib.suppress(OpListError):
            changed = as_given.under(change)
            op_names.check(changed.job.config)
            painting = decide(changed)[0].painting
            converted = [painting.view.names[node] for node in painting.converted_nodes()]
            if (name in converted) != is_f16:
                return change
    return NO_CHANGE
