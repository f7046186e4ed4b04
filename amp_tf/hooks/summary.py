"""Makes the summary line and ``amp_tf.report()``: how amp_tf changed this process, or why not."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import amp_tf
from amp_tf.config import DISABLE_VAR, ENABLE_VAR, Switches, is_disabled, sources
from amp_tf.errors import ConfigError
from amp_tf.graph.datatypes import FLOAT
from amp_tf.graph.names import describe_unmatched
from amp_tf.hooks import notices
from amp_tf.hooks import state as process_state
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.op_names import registered_rows
from amp_tf.oplists.table import PRODUCTS
from amp_tf.reporting import reports
from amp_tf.reporting.reports import RewriteReport, Totals
from amp_tf.reporting.text import plural, why_no_node

#: a part of a report, which report-1.schema.json describes
JsonObject = dict[str, Any]

EAGER = (
    "TensorFlow ran no graph of four nodes or more (it runs eagerly what is not in a tf.function, "
    "in Keras' fit, evaluate or predict, or in a session)"
)
TRACED_BEFORE = (
    "TensorFlow ran no new graph since amp_tf was turned on, and concrete functions that it traced "
    "before stay as they are (functions: {count}, such as {example!r}): turn amp_tf on first"
)
ONLY_PIPELINES = (
    "TensorFlow ran no graph but those of input pipelines (tf.data), which stay in float32"
)
OTHER_BACKEND = "Keras runs on {backend}, and amp_tf converts nothing but TensorFlow's graphs"
SKIPPED = "no graph that was not skipped has a matmul or convolution"  # a part of the line says why
ALL_FAILED = "amp_tf failed on every graph"
NO_PLUGIN = "TensorFlow gave amp_tf no graph"
ONLY_XLA = (
    "all the work is in functions compiled by XLA (jit_compile=True), which TensorFlow's graph "
    "optimizers never see"
)
UNSEEN_PRODUCT = (
    "no product of the traced function {example!r} reached amp_tf: it did not run, or "
    "TensorFlow's own graph optimizers removed it or failed before amp_tf was asked, as "
    "TensorFlow's log says"
)
#: shows a GPU's accuracy without one
ON_GPU = "amp-tf compare --precision float16 --target gpu -- python train.py"
FUSED = (
    "matmuls or convolutions that TensorFlow fused with what follows, without 16-bit kernels here"
)
#: the fields of the runtime that a report shows
_OF_HOOKS = ("off", "idle", "policy", "failures", "first_failure", "not_installed")
_PLUGIN = "amp_tf.hooks.plugin"  # without it only functions compiled by XLA are seen


def add_part(part: Callable[[], str]) -> None:
    """Adds a function whose result, such as the loss scale, is appended to the line.

    It returns ``""`` for nothing.
    """
    parts = process_state.current().parts
    if part not in parts:
        parts.append(part)


def log() -> None:
    """Prints the summary; after a traceback only if it might explain it. Never raises."""
    try:
        state = process_state.current()
        has_acted = reports.totals().converted or state.failures or state.not_installed
        # At a prompt an error only ends a line.
        is_ended_by_error = hasattr(sys, "last_type") and not hasattr(sys, "ps1")
        if has_acted or not is_ended_by_error:
            notices.emit(logging.INFO, line())
    except Exception as error:  # must not disturb the end of the user's program
        print(f"amp_tf: no summary: {type(error).__name__}: {error}", file=sys.stderr)


def line() -> str:
    """The summary of this process so far.

    It begins as ``4 graphs, 120 of 560 nodes converted to bfloat16, 45 casts``.
    """
    report = reports.of_process()
    totals = reports.totals()
    state = process_state.current()
    if state.off is None and not totals.graphs:
        state = dataclasses.replace(state, off=_why_never_on())
    why = ""
    text = str(totals)
    if not totals.converted:
        why = why_nothing(report, totals, state)
        text = f"{totals}: {why}"
    if why and not totals.graphs:
        text = f"nothing was converted: {why}"
    if totals.converted and totals.fused:
        text += f"; {plural(totals.fused, 'fused op')} left in float32: {FUSED}"
    if state.off and totals.graphs:
        text += f"; by now {state.off}"
    if totals.unmatched:
        names = (node.name for node in report.nodes)
        text += f"; patterns that matched no node: {describe_unmatched(totals.unmatched, names)}"
    if state.failures:
        text += f"; {plural(state.failures, 'rewrite')} failed, and the graphs stayed in float32"
        text += f" ({state.first_failure})"
    if state.not_installed:
        failed = [f"{home} ({error})" for home, error in state.not_installed.items()]
        text += f"; not installed: {', '.join(failed)}"
    parts = [text, *(part() for part in state.parts)]
    reason = report.why_nothing
    if reason and reason.rule.name == "NO_TARGET" and why == str(reason):
        parts.append(f"to see its accuracy on a GPU: {ON_GPU}")
    return "; ".join(filter(None, parts))


def report() -> RewriteReport:
    """Everything that this process rewrote so far, with the reason for every node.

    ``print(amp_tf.report())`` begins with the line that the process prints at exit. If a program
    has very many graphs, the report has the last ones: about 250,000 nodes of graphs in which
    something was converted, and 50,000 of others. With ``AMP_TF_REPORT`` it has figures of the last
    fifth of either. ``left_out`` says what is missing.
    """
    state = process_state.current()
    totals = reports.totals()
    facts = {
        "process": _describe_process(),
        "totals": {
            "graphs": totals.graphs,
            "nodes": totals.total,
            "converted": totals.converted,
            "casts": totals.casts,
        },
        "settings": _list_settings(),
        "devices": _list_devices(),
        "hooks": {field: getattr(state, field) for field in _OF_HOOKS},
        "loss_scales": [],
        "steps": [],
    }
    ledger = sys.modules.get("amp_tf.loss_scaling.ledger")
    if ledger is not None:
        facts["loss_scales"] = ledger.curves()
    times = sys.modules.get("amp_tf.hooks.step_times")
    if times is not None:
        facts["steps"] = times.rows()
    return dataclasses.replace(reports.of_process(), summary=line(), facts=facts)


def _describe_process() -> JsonObject:
    ended = ""
    error = getattr(sys, "last_type", None)
    if error is not None:
        ended = f"by {error.__name__}"
    command = sys.argv
    if not any(command):  # at a prompt
        command = [sys.executable]
    return {
        "program": shlex.join(command),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": round(process_state.seconds(), 3),
        "ended": ended,
        "amp_tf": amp_tf.__version__,
        "python": sys.version.split()[0],
        "tensorflow": getattr(sys.modules.get("tensorflow"), "__version__", None),
        "keras": getattr(sys.modules.get("keras"), "__version__", None),
    }


def _list_settings() -> list[JsonObject]:
    """The settings in force and the registered ops, each once."""
    found: list[JsonObject] = [*sources(process_state.settings())]
    rows = {row.op: row for row in registered_rows()}
    for row in rows.values():
        why = f"{row.op_list} list, because it {row.why}"
        found.append({"field": f"op {row.op}", "value": why, "from": "amp_tf.register_op"})
    return found


def _list_devices() -> list[JsonObject]:
    found = Hardware.detect_cpu()
    if reports.totals().graphs:  # else it may not look for GPUs yet
        found = process_state.hardware()
    devices: list[JsonObject] = [
        {
            "type": "CPU",
            "bfloat16": found.cpu_has_bf16,
            "avx512": found.cpu_has_avx512,
            "costs": found.costs.source,
        }
    ]
    for pair in found.gpu_capabilities:
        tf32 = process_state.uses_tf32(pair)
        devices.append({"type": "GPU", "compute_capability": [*pair], "tf32": tf32})
    return devices


def why_nothing(report: RewriteReport, totals: Totals, state: process_state.Runtime) -> str:
    """Why no node of this process was converted."""
    if state.off and not totals.graphs:
        return state.off
    if state.idle:
        return state.idle
    if state.traced and not (totals.graphs or state.failures or _traced_since(state)):
        return TRACED_BEFORE.format(
            count=len(state.traced), example=name_in_python(state.traced[0])
        )
    by_grappler = totals.graphs.get("grappler", 0)
    are_all_calls = not totals.graphs.get("xla") and by_grappler == state.xla_graphs
    if are_all_calls and (by_grappler or _has_functions_for_xla()):
        return ONLY_XLA
    if not totals.graphs:
        if state.failures:
            return ALL_FAILED
        if _PLUGIN in state.not_installed:
            return NO_PLUGIN
        if _has_skipped():
            return SKIPPED
        unseen = _unseen_product(state) or _other_backend()
        if not unseen and _has_pipelines():
            return ONLY_PIPELINES
        return unseen or EAGER
    reason = report.why_nothing
    if reason is None or reason.rule.name == "NOTHING_TO_CONVERT":
        if _has_skipped():
            return SKIPPED
        unseen = _unseen_product(state)
        if unseen:
            return unseen
        if state.policy:
            return (
                f"Keras' own policy {state.policy!r} has its layers compute in 16 bit, and left "
                "nothing to convert"
            )
    if reason is None:
        return "no graph has a matmul or convolution"
    return why_no_node(reason)


def _why_never_on() -> str:
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
        "amp_tf is off: this Python did not read amp_tf.pth, so the variable alone does nothing; "
        "call amp_tf.enable(), or start the program with amp-tf run -- python …"
    )


def _has_functions_for_xla() -> bool:
    functions = process_state.find_functions(process_state.function_names())
    return any(function.attr["_XlaMustCompile"].b for function in functions)


def _traced_since(state: process_state.Runtime) -> list[str]:
    """The live functions that TensorFlow has traced since amp_tf was turned on."""
    before = set(state.traced)
    return [name for name in process_state.traced_functions() if name not in before]


def _unseen_product(state: process_state.Runtime) -> str:
    """Names a function in which a product was traced since then; empty if there is none.

    It is called if amp_tf has seen no product: if one of TensorFlow's own optimizers fails,
    TensorFlow runs the function unchanged and calls no plugin.
    """
    for function in process_state.find_functions(_traced_since(state)):
        for node in function.node_def:
            if node.op in PRODUCTS and node.attr["T"].type == FLOAT:
                return UNSEEN_PRODUCT.format(example=name_in_python(function.signature.name))
    return ""


def _other_backend() -> str:
    """Says that Keras runs on another backend; empty if it does not."""
    keras: Any = sys.modules.get("keras")
    if not hasattr(keras, "backend") or keras.backend.backend() == "tensorflow":
        return ""
    return OTHER_BACKEND.format(backend=keras.backend.backend())


def _has_skipped() -> bool:
    plugin = sys.modules.get(_PLUGIN)
    return plugin is not None and bool(plugin.skipped())


def _has_pipelines() -> bool:
    plugin = sys.modules.get(_PLUGIN)
    return plugin is not None and plugin.count_skipped(plugin.Skip.PIPELINE)[0] > 0


def name_in_python(function: str) -> str:
    """The name of a traced function in the program, by TensorFlow's."""
    return re.sub(r"_\d+$", "", function.removeprefix(process_state.TRACED))
