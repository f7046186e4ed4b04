"""The line at exit and ``amp_tf.report()``: what amp_tf did to this process, or why it did nothing."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amp_tf.config import DISABLE_VAR, ENABLE_VAR, Switches, is_disabled
from amp_tf.errors import ConfigError
from amp_tf.hooks.process import devices, notices
from amp_tf.hooks.process import state as process_state
from amp_tf.hooks.process.facts import process_facts

if TYPE_CHECKING:
    from amp_tf.reporting.process import Totals
    from amp_tf.reporting.schema import RewriteReport

EAGER = (
    "TensorFlow ran no graph of four nodes or more (it runs eagerly what is not in a tf.function, in Keras' fit, "
    "evaluate or predict, or in a session)"
)
TRACED_BEFORE = (
    "TensorFlow ran no new graph since amp_tf was turned on, and what it traced before stays as it is (functions: "
    "{count}, such as {example!r}): turn amp_tf on first, or call model.compile(…) again and make tf.functions anew"
)
ALL_FAILED = "amp_tf failed on every graph"
NO_PLUGIN = "no graph of TensorFlow's reached amp_tf"
ONLY_XLA = (
    "all the work is in functions compiled by XLA (jit_compile=True), which TensorFlow's graph optimizers never see"
)
ON_GPU = "amp-tf compare --precision float16 --target gpu -- python train.py"  #: shows a GPU's accuracy without one
FUSED = "TensorFlow fused them with what follows, and the fused kernels have no 16-bit form here"
_TRACED = "__inference_"  # begins TensorFlow's names of traced functions
_PLUGIN = "amp_tf.hooks.grappler.plugin"  # without it only functions compiled by XLA are seen

# What runs at exit imports these here and there: by then the package may have been upgraded or uninstalled.
_AT_EXIT = (
    *("amp_tf.graph.names", "amp_tf.hooks.grappler.failures", "amp_tf.oplists.targets", "amp_tf.painting.locked"),
    *("amp_tf.reporting.process", "amp_tf.reporting.text"),
)
_FOR_REPORTS = ("amp_tf.oplists.registered", "amp_tf.reporting.document", "amp_tf.reporting.files")

_parts: list[Callable[[], str]] = []
_has_ended = False  # whether the program has ended, and only the line is left


def add_part(part: Callable[[], str]) -> None:
    """Adds a function whose result, such as the loss scale, is appended to the line; ``""`` for nothing."""
    if part not in _parts:
        _parts.append(part)


def load(*, with_report: bool) -> None:
    """Imports what the line at exit needs, and the report if there will be one. Idempotent."""
    for name in (*_AT_EXIT, *(_FOR_REPORTS if with_report else ())):
        importlib.import_module(name)


def is_due() -> bool:
    """Whether any graph of this process was seen: then the line is printed even if amp_tf is off by now."""
    process = sys.modules.get("amp_tf.reporting.process")
    return process is not None and bool(process.totals().graphs)


def log() -> None:
    """Prints the summary through absl logging, if TensorFlow was imported at all. Never raises.

    After a traceback of the program's own, only if something was converted or failed, which might explain it.
    """
    global _has_ended
    if "tensorflow" not in sys.modules:
        return
    _has_ended = True
    try:
        if not _ended_by_error() or _has_acted():
            notices.emit(logging.INFO, line())
    except Exception as error:  # must not disturb the end of the user's program
        print(f"amp_tf: no summary: {type(error).__name__}: {error}", file=sys.stderr)


def line() -> str:
    """The summary of this process so far.

    For example ``4 graphs, 120 of 560 nodes converted to bfloat16, 45 casts``, or
    ``0 graphs, 0 of 0 nodes converted, 0 casts: TensorFlow ran no graph …``.
    """
    from amp_tf.graph.names import tell_unmatched
    from amp_tf.reporting import process
    from amp_tf.reporting.text import headline, plural

    report, totals, state = process.report(), process.totals(), process_state.current()
    if state.off is None and not totals.graphs:
        state = dataclasses.replace(state, off=_why_never_on())
    counts = (sum(totals.graphs.values()), totals.converted, totals.total, totals.precisions, totals.casts)
    text = headline(*counts, totals.products)
    why = "" if totals.converted else why_nothing(report, totals, state)
    text += f": {why}" if why else ""
    if totals.converted and totals.fused:
        text += f"; {plural(totals.fused, 'product')} left in float32: {FUSED}"
    if state.off and totals.graphs:
        text += f"; by now {state.off}"
    if totals.idle_patterns:
        names = (node.name for node in report.nodes)
        text += f"; patterns that matched no node: {tell_unmatched(totals.idle_patterns, names)}"
    if changes := _lock_changes(totals):
        text += f"; lock file: {changes}"
    if state.failures:
        text += (
            f"; {plural(state.failures, 'rewrite')} failed, and the graphs stayed in float32 ({state.first_failure})"
        )
    if state.not_installed:
        text += f"; not installed: {', '.join(f'{home} ({why})' for home, why in state.not_installed.items())}"
    parts = [text, *filter(None, (part() for part in _parts))]
    if why and why == _why_no_target(report):
        parts.append(f"how it would fare on a GPU: {ON_GPU}")
    return "; ".join(parts)


def report() -> RewriteReport:
    """Everything that this process rewrote so far, with the reason for every node.

    ``print(amp_tf.report())`` begins with the line that the process prints at exit. Of programs with very many graphs,
    the report has the last ones: about 250,000 nodes of graphs in which something was converted, and 50,000 of others.
    """
    from amp_tf.reporting import process

    return dataclasses.replace(process.report(), summary=line(), facts=process_facts())


def why_nothing(report: RewriteReport, totals: Totals, state: process_state.ProcessState) -> str:
    """Why no node of this process was converted."""
    from amp_tf.reporting.text import why_no_node

    if state.off and not totals.graphs:
        return state.off
    if state.idle:
        return state.idle
    if state.traced and not totals.graphs and not state.failures:
        return TRACED_BEFORE.format(count=len(state.traced), example=_name_of(state.traced[0]))
    by_grappler = totals.graphs.get("grappler", 0)
    if not totals.graphs.get("xla") and by_grappler == state.xla_graphs and (by_grappler or _has_xla_functions()):
        return ONLY_XLA
    if not totals.graphs:
        if state.failures:
            return ALL_FAILED
        return NO_PLUGIN if _PLUGIN in state.not_installed else _failed_before() or EAGER
    reason = report.why_nothing
    if (reason is None or reason.rule.name == "NOTHING_TO_CONVERT") and (failed := _failed_before()):
        return failed
    if state.policy and (reason is None or reason.rule.name == "NOTHING_TO_CONVERT"):
        return f"Keras' own policy {state.policy!r} has its layers compute in 16 bit, and left nothing to convert"
    return why_no_node(reason) if reason else "no node of any graph is one that 16 bit is for"


def _lock_changes(totals: Totals) -> str:
    """What the lock file was made for, where that differs, and its entries that no longer match."""
    from amp_tf.oplists.targets import resolve_target
    from amp_tf.painting.locked import describe

    config = process_state.settings()
    if config.lock_path is None:
        return ""
    try:
        lock = config.read_lock()
    except ConfigError as error:  # it was damaged meanwhile
        return str(error).rstrip(".")
    other = lock.differences(resolve_target(config, devices.hardware()).facts())
    return "; ".join(filter(None, (other, describe(totals.locked))))


def _failed_before() -> str:
    """The error of TensorFlow's own optimizers; asked only at the end, because it takes a second session."""
    if not _has_ended or "tensorflow" not in sys.modules:
        return ""
    from amp_tf.hooks.grappler import failures

    try:
        failure = failures.find()
    except Exception:  # functions may come and go meanwhile; the line is printed all the same
        return ""
    return f"TensorFlow's own graph optimizers fail before amp_tf is asked ({failure})" if failure else ""


def _why_no_target(report: RewriteReport) -> str:
    """Why no device of this machine is converted, if that is why nothing was; else empty."""
    reason = report.why_nothing
    return str(reason) if reason is not None and reason.rule.name == "NO_TARGET" else ""


def _why_never_on() -> str:
    """Why amp_tf is off where nothing ever turned it on."""
    try:
        if is_disabled():
            return f"amp_tf is off: {DISABLE_VAR} is set"
        if not Switches.from_env().any:
            return f"amp_tf is off: set {ENABLE_VAR}=1 or call amp_tf.enable() to turn it on"
    except ConfigError as error:
        return f"amp_tf is off: {str(error).rstrip('.')}"
    if "tensorflow" not in sys.modules:
        return "TensorFlow is not imported yet"
    return (
        "amp_tf is off: this Python did not read amp_tf.pth, so the variable alone does nothing; call amp_tf.enable(), "
        "or start the program with amp-tf run -- python …"
    )


def _ended_by_error() -> bool:
    """Whether an uncaught error ends the program; at an interactive prompt it only ends a line."""
    return hasattr(sys, "last_type") and not hasattr(sys, "ps1")


def _has_acted() -> bool:
    from amp_tf.reporting import process

    state = process_state.current()
    return bool(process.totals().converted or state.failures or state.not_installed)


def traced_functions() -> list[str]:
    """The live functions that TensorFlow has traced, without those of input pipelines."""
    names = running.list_function_names() if (running := _running()) else ()
    return sorted(name for name in names if name.startswith(_TRACED) and not name.startswith(f"{_TRACED}Dataset_"))


def _name_of(function: str) -> str:
    """A traced function's name in Python."""
    return re.sub(r"_\d+$", "", function.removeprefix(_TRACED))


def _has_xla_functions() -> bool:
    """Whether any live tf.function is to be compiled by XLA."""
    running = _running()
    names = running.list_function_names() if running else ()
    return any(running.get_function_def(name).attr["_XlaMustCompile"].b for name in names)


def _running() -> Any:
    """TensorFlow's eager context once it has begun; ``None`` before, and where it is not wholly imported."""
    found = getattr(sys.modules.get("tensorflow.python.eager.context"), "context_safe", lambda: None)()
    return found if found is not None and found._initialized else None
