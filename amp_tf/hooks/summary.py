"""The one line at the end of the process: what was converted, or why nothing was."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from amp_tf.hooks import evidence, notices

if TYPE_CHECKING:
    from amp_tf.reporting.process import Totals
    from amp_tf.reporting.schema import RewriteReport

EAGER = (
    "TensorFlow ran no graph of four nodes or more (it runs eagerly what is not in a tf.function, in Keras' fit, "
    "evaluate or predict, or in a session)"
)
ALL_FAILED = "amp_tf failed on every graph"
NO_PLUGIN = "no graph of TensorFlow's reached amp_tf"
ONLY_XLA = (
    "all the work is in functions compiled by XLA (jit_compile=True), which TensorFlow's graph optimizers never see"
)
_PLUGIN = "amp_tf.hooks.grappler.plugin"  # without it only functions compiled by XLA are seen

_parts: list[Callable[[], str]] = []


def add_part(part: Callable[[], str]) -> None:
    """Adds something to the line, such as the loss scale. Adding the same part again does nothing.

    Args:
        part: called at exit; returns the text, or ``""`` if there is nothing to say.
    """
    if part not in _parts:
        _parts.append(part)


def is_due() -> bool:
    """Whether any graph of this process was looked at: then the line is due, even if amp_tf is off by now."""
    process = sys.modules.get("amp_tf.reporting.process")
    return process is not None and bool(process.totals().graphs)


def log() -> None:
    """Prints the summary through absl logging, if TensorFlow was imported at all. Never raises."""
    if "tensorflow" not in sys.modules:
        return
    try:
        notices.emit(logging.INFO, line())
    except Exception as error:  # this is the end of somebody else's program
        print(f"amp_tf: no summary: {type(error).__name__}: {error}", file=sys.stderr)


def line() -> str:
    """The summary of this process so far.

    For example ``4 graphs, 120 of 560 nodes converted to bfloat16, 45 casts``, or
    ``0 graphs, 0 of 0 nodes converted, 0 casts: TensorFlow ran no graph …``.
    """
    from amp_tf.reporting import process
    from amp_tf.reporting.text import headline, plural

    report, totals, seen = process.report(), process.totals(), evidence.seen()
    text = headline(sum(totals.graphs.values()), totals.converted, totals.total, totals.precisions, totals.casts)
    if not totals.converted:
        text += f": {why_nothing(report, totals, seen)}"
    if totals.unmatched:
        text += f"; patterns that matched no node: {', '.join(sorted(totals.unmatched))}"
    if seen.failures:
        text += f"; {plural(seen.failures, 'rewrite')} failed, and the graphs stayed in float32"
    if seen.not_installed:
        text += f"; not installed: {', '.join(f'{home} ({why})' for home, why in seen.not_installed.items())}"
    return "; ".join([text, *filter(None, (part() for part in _parts))])


def why_nothing(report: RewriteReport, totals: Totals, seen: evidence.Evidence) -> str:
    """Why no node of this process was converted."""
    if seen.idle:
        return seen.idle
    by_grappler = totals.graphs.get("grappler", 0)
    if not totals.graphs.get("xla") and by_grappler == seen.xla_graphs and (by_grappler or _has_xla_functions()):
        return ONLY_XLA
    if not totals.graphs:
        if seen.failures:
            return ALL_FAILED
        return NO_PLUGIN if _PLUGIN in seen.not_installed else EAGER
    return str(report.why_nothing or "no node of any graph is one that 16 bit is for")


def _has_xla_functions() -> bool:
    """Whether any tf.function that is alive is to be compiled by XLA."""
    from tensorflow.python.eager import context

    running = context.context_safe()
    if running is None or not running._initialized:
        return False
    names = running.list_function_names()
    return any(running.get_function_def(name).attr["_XlaMustCompile"].b for name in names)
