"""One random graph before the judge: equal, different, or left out with the reason."""

from __future__ import annotations

import dataclasses

from tests.oracle import Mode, OriginalFailedError, run_original
from tests.parity.comparison import Difference, differences, run_ours
from tests.parity.deliberate_differences import knobs_for_original, reason_to_leave_out, undone
from tests.parity.minimising import smallest
from tests.parity.random_graphs import RandomGraph, in_words

EQUAL, DIFFERS = "equal", "differs"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came out.

    Attributes:
        kind: :data:`EQUAL`, :data:`DIFFERS`, or why nothing was compared.
        found: the differences.
    """

    kind: str
    found: tuple[Difference, ...] = ()


def judge(graph: RandomGraph, mode: Mode) -> Verdict:
    """Runs both passes and compares, as far as no deliberate difference shows."""
    try:
        original = run_original(graph.graph_def, mode, graph.preserve, knobs_for_original(graph, mode))
    except OriginalFailedError as error:
        if graph.knobs.level != "UNSAFE_FORCE_ALL":
            raise
        return Verdict(f"left out: force-all-fixed ({str(error)[:40]})")
    # Grappler counts every Placeholder among the feeds, which are preserved.
    feeds = tuple(node.name for node in graph.graph_def.node if node.op == "Placeholder")
    with undone():
        ours = run_ours(graph.graph_def, mode, (*graph.preserve, *feeds), graph.knobs)
    left_out = reason_to_leave_out(graph, mode, original)
    if left_out:
        return Verdict(f"left out: {left_out}")
    found = tuple(differences(ours, original))
    return Verdict(DIFFERS if found else EQUAL, found)


def made_small(graph: RandomGraph, mode: Mode) -> str:
    """A graph that differs, cut down as far as it still differs, in words."""
    small = smallest(graph, lambda candidate: judge(candidate, mode).kind == DIFFERS)
    return in_words(small, judge(small, mode).found)
