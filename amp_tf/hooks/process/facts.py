"""Collects what a report says of this process beside its graphs."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from amp_tf.config import sources
from amp_tf.hooks.process import state as process_state

if TYPE_CHECKING:
    from amp_tf.reporting.document_types import ProcessFacts


def process_facts() -> ProcessFacts:
    """Program, settings, devices, loss scales and times of this process, as a report shows them."""
    from amp_tf.reporting import process
    from amp_tf.reporting.document_types import ProcessFacts

    state, totals = process_state.current(), process.totals()
    return ProcessFacts(
        process=_process(),
        totals={"graphs": totals.graphs, "nodes": totals.total, "converted": totals.converted, "casts": totals.casts},
        settings=[*sources(process_state.settings()), *_registered_ops()],
        devices=_devices(bool(totals.graphs)),
        hooks={
            "off": state.off,
            "idle": state.idle,
            "policy": state.policy,
            "failures": state.failures,
            "first_failure": state.first_failure,
            "not_installed": dict(state.not_installed),
        },
        loss_scales=_curves(),
        steps=_steps(),
    )


def _registered_ops() -> list[dict[str, Any]]:
    """What libraries registered, as settings, each op once."""
    from amp_tf.oplists import registered

    whys = {row.op: f"{row.op_list} list, because it {row.why}" for row in registered.rows()}
    return [{"field": f"op {op}", "value": why, "from": "amp_tf.register_op"} for op, why in whys.items()]


def _process() -> dict[str, Any]:
    import amp_tf

    error = getattr(sys, "last_type", None)
    tensorflow, keras = sys.modules.get("tensorflow"), sys.modules.get("keras")
    return {
        "program": " ".join(sys.argv) or sys.executable,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": round(process_state.seconds(), 3),
        "ended": process_state.current().ended or (f"by {error.__name__}" if error is not None else ""),
        "amp_tf": amp_tf.__version__,
        "python": sys.version.split()[0],
        "tensorflow": getattr(tensorflow, "__version__", None),
        "keras": getattr(keras, "__version__", None),
    }


def _devices(has_graphs: bool) -> list[dict[str, Any]]:
    """The devices of this process; a process without graphs is not made to look for GPUs."""
    from amp_tf.hooks.process import devices
    from amp_tf.oplists.hardware import Hardware

    found = devices.hardware() if has_graphs else Hardware.detect_cpu()
    cpu = {"type": "CPU", "bfloat16": found.cpu_has_bf16, "avx512": found.cpu_has_avx512, "costs": found.costs.source}
    gpus = ({"compute_capability": list(pair), "tf32": devices.uses_tf32(pair)} for pair in found.gpu_capabilities)
    return [cpu, *({"type": "GPU", **gpu} for gpu in gpus)]


def _steps() -> list[dict[str, Any]]:
    times = sys.modules.get("amp_tf.hooks.step_times")
    return times.rows() if times is not None else []


def _curves() -> list[Any]:
    ledger = sys.modules.get("amp_tf.loss_scaling.ledger")
    return ledger.curves() if ledger is not None else []
