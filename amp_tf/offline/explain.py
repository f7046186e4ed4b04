"""Explains one node: its precision, the rule, how the decision came about, and what would change
it.

A node in float32 has a root, as in :mod:`amp_tf.reporting.blockers`. Proposals are tried, not
guessed: the rewrite's own step (:func:`amp_tf.rewriting.pipeline.decide`) decides the graph again
under the change. Graphs without shapes are not folded, here as in ``amp-tf rewrite``; a running
program's graphs get theirs from Grappler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
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
from amp_tf.reporting.blockers import Root, lists_of, root_of, settings_words
from amp_tf.reporting.figures import GraphFigures
from amp_tf.reporting.text import plural
from amp_tf.rewriting.form import Form, Job
from amp_tf.rewriting.pipeline import check_arguments, decide, pause_garbage_collector, settle
from amp_tf.rewriting.recording import report_of
from amp_tf.values import check_batch

_NAME_A_TARGET = (
    "Nothing is converted here unless it is named. Explain it with --precision float16 --target "
    "gpu, as a GPU would "
    "run it, or with --precision bfloat16, as this CPU would."
)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What is known of one node."""

    name: str  #: the node
    op: str
    new_op: str  #: the op that folding normalization turned it into; else ``op``
    op_list: str  #: the list that its op is on, empty for none
    precision: Precision  #: what its result is computed in
    reason: Reason  #: why
    #: names of the nodes along which the decision came, the node first; one name where the node
    #: decided alone
    trail: tuple[str, ...]
    #: adds a pattern for this node, under all names that it may run under; empty where that does
    #: not turn it
    own_change: Change
    change: Change  #: of a setting, which turns it and others; empty where none does
    remedy: str = ""  #: in words, what would turn a node that is float32 where no setting does
    matches: int = 1  #: how many nodes the pattern for this one finds
    #: why its library registered the op for the list; empty where none did, or a setting moved the
    #: op
    registered: str = ""

    def __str__(self) -> str:
        is_without_target = self.reason.rule is Rule.NO_TARGET  # so that no lists count
        listed = (
            ""
            if is_without_target
            else f", on the {self.op_list} list"
            if self.op_list
            else ", on no list"
        )
        op = self.op if self.new_op == self.op else f"{self.op}, folded to {self.new_op}"
        # An integer, a 16-bit type chosen by the user, or what was rewritten before: amp_tf does
        # not decide its type.
        is_other = self.reason.rule in (Rule.NO_FLOAT32, Rule.ROUNDED_BEFORE)
        state = "is left as it is" if is_other else f"computes in {self.precision.value}"
        lines = [f"{self.name} ({op}{listed}) {state}: {self.reason}."]
        if is_without_target:
            return "\n".join([*lines, _NAME_A_TARGET])
        if self.registered:
            lines.append(f"The op was registered for that list because it {self.registered}.")
        if self.reason.balance is not None:
            lines.append(
                "These are the cost model's estimates. To convert the node anyway, name the "
                "precision: "
                "--precision bfloat16, or AMP_TF_PRECISION=bfloat16."
            )
        if len(self.trail) > 1:
            lines.append("The decision came from node to node: " + " <- ".join(self.trail))
        return "\n".join([*lines, *([] if is_other else self._proposals())])

    def _proposals(self) -> list[str]:
        other = "float32" if self.precision.is_f16 else "16 bit"
        lines = []
        if self.own_change:
            nodes = "this node alone"
            if self.matches > 1:
                nodes = (
                    f"this node, and {plural(self.matches - 1, 'other node')} that the pattern "
                    "matches,"
                )
            lines.append(f"To compute {nodes} in {other}: {settings_words(self.own_change)}")
        if self.change:
            lines.append(
                f"To compute it in {other}, and all like it: {settings_words(self.change)}"
            )
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
    """Explains a node of a ``GraphDef`` or ``FunctionDef``, on the devices of ``hardware``, this
    machine's CPU by default.

    Normalization is folded where the nodes carry their shapes. For a FunctionDef, ``library`` has
    the functions that it calls. ``where`` is where the graph comes from, such as a file, for the
    error. ``batch`` and ``beyond_range`` are those of :func:`amp_tf.rewrite`.

    Raises a GraphError where the graph has no node of that name, which names the closest ones, and
    an OpListError where a change of the lists names an op that TensorFlow does not know.
    """
    machine = Hardware.detect_cpu() if hardware is None else hardware
    names = check_arguments(graph, config, preserve, hardware, library, None)
    config = dataclasses.replace(
        config, report_path="-"
    )  # so that the report has what blockers need
    is_function = hasattr(graph, "node_def")
    library = library if is_function else graph.library
    job = Job.of(
        config,
        settle(config, machine),
        library,
        names,
        has_preserved=True,
        batches=BatchShapes(graph, library, check_batch(batch, where="explain(batch=…)")),
        beyond_range=beyond_range or {},
    )
    given = job.form((read_function if is_function else read_graph)(graph, job.templates), None)
    form, casts = decide(given)
    figures = GraphFigures(report_of(form, casts))
    view = figures.view
    if node_name not in view.names:
        place = f"function {view.function!r}" if view.function else where or "graph"
        raise missing_node(node_name, view.names, place)
    node = view.names.index(node_name)
    is_f16 = bool(figures.is_f16[node])
    op = view.ops[node]
    op_list = lists_of(job.resolution).get(op, "")
    row = find_registered(op)
    own_pattern = pattern_for(node_name, find_followers(graph))
    own = Change(added=frozenset({("keep_float32" if is_f16 else "force_f16", own_pattern)}))
    root = None if is_f16 else root_of(figures, node)
    trail = figures.report.painting.trail(node)
    return Explanation(
        name=node_name,
        op=dict(zip(given.view.names, given.view.ops, strict=True)).get(node_name, op),
        new_op=op,
        op_list=op_list,
        precision=figures.report.precision
        if is_f16 and figures.report.precision
        else Precision.FLOAT32,
        reason=figures.reasons[node],
        trail=tuple(view.names[before] for before in trail),
        own_change=_first(given, node_name, is_f16, [own]),
        change=_first(given, node_name, is_f16, _changes(figures, node, root)),
        remedy=root.remedy
        if root and _first(given, node_name, is_f16, [root.change(figures, trail[-1:])])
        else "",
        registered=row.why if row and op_list == row.op_list else "",
        matches=sum(re.search(own_pattern, name) is not None for name in view.names),
    )


def _changes(figures: GraphFigures, node: Node, root: Root | None) -> list[Change]:
    """The changes of settings that may turn a node, and others like it, the narrowest first."""
    op = figures.view.ops[node]
    if figures.reasons[node].rule is Rule.FORCED_BY_NAME:
        name = figures.view.names[node]
        patterns = [pattern for pattern in figures.basis.config.force_f16 if matcher(pattern)(name)]
        return [Change(dropped=frozenset(("force_f16", pattern) for pattern in patterns))]
    if figures.is_f16[node]:
        return [Change(added=frozenset({("deny_add", op)}))]
    clear, allow = (Change(added=frozenset({(field, op)})) for field in ("clear_add", "allow_add"))
    return [clear, root.settings if root else NO_CHANGE, allow]


def _first(given: Form, node_name: str, is_f16: bool, changes: Iterable[Change]) -> Change:
    """The first change under which a node, looked up by name, has the other precision."""
    for change in changes if given.job.converts else ():
        with contextlib.suppress(OpListError):
            changed = given.under(change)
            op_names.check(changed.job.config)
            painting = decide(changed)[0].painting
            names = painting.view.names
            if (
                node_name in names and names.index(node_name) in painting.converted_nodes()
            ) != is_f16:
                return change
    return NO_CHANGE
