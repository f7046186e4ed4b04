"""What a report says of this process beside its graphs."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from amp_tf.config import AmpConfig, sources
from amp_tf.hooks import evidence

if TYPE_CHECKING:
    from amp_tf.reporting.facts import Facts

_began = time.monotonic()
_config: AmpConfig | None = None
_ended = ""  # how, where it was not by itself


def note_settings(config: AmpConfig) -> AmpConfig | None:
    """Notes what is converted from now on; returns what was before."""
    global _config
    before, _config = _config, config
    return before


def settings() -> AmpConfig:
    """What is converted; the defaults if nothing was noted."""
    return _config or AmpConfig()


def note_end(how: str) -> None:
    """Notes that the process does not end by itself."""
    global _ended
    _ended = how


def seconds() -> float:
    """Since this module was imported."""
    return time.monotonic() - _began


def facts() -> Facts:
    """What the report says of this process beside its graphs."""
    from amp_tf.reporting import process
    from amp_tf.reporting.facts import Facts

    seen, totals = evidence.seen(), process.totals()
    return Facts(
        process=_process(),
        totals={"graphs": totals.graphs, "nodes": totals.total, "converted": totals.converted, "casts": totals.casts},
        settings=sources(settings()),
        devices=_devices(bool(totals.graphs)),
        hooks={
            "off": seen.off,
            "idle": seen.idle,
            "policy": seen.policy,
            "failures": seen.failures,
            "first_failure": seen.first_failure,
            "not_installed": dict(seen.not_installed),
        },
        loss_scales=_curves(),
        steps=_steps(),
    )


def _process() -> dict[str, Any]:
    import amp_tf

    error = getattr(sys, "last_type", None)
    tensorflow, keras = sys.modules.get("tensorflow"), sys.modules.get("keras")
    return {
        "program": " ".join(sys.argv) or sys.executable,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": round(seconds(), 3),
        "ended": _ended or (f"by {error.__name__}" if error is not None else ""),
        "amp_tf": amp_tf.__version__,
        "python": sys.version.split()[0],
        "tensorflow": getattr(tensorflow, "__version__", None),
        "keras": getattr(keras, "__version__", None),
    }


def _devices(has_graphs: bool) -> list[dict[str, Any]]:
    """Those that a rewrite asked for; a process without graphs is not made to look for GPUs."""
    from amp_tf.hooks import devices
    from amp_tf.oplists.cost_tables import SHIPPED
    from amp_tf.oplists.hardware import Hardware

    found = devices.hardware() if has_graphs else Hardware.detect_cpu()
    table = found.costs or SHIPPED
    cpu = {"type": "CPU", "bfloat16": found.cpu_has_bf16, "avx512": found.cpu_has_avx512, "costs": table.source}
    gpus = ({"compute_capability": list(pair), "tf32": devices.uses_tf32(pair)} for pair in found.gpu_capabilities)
    return [cpu, *({"type": "GPU", **gpu} for gpu in gpus)]


def _steps() -> list[dict[str, Any]]:
    times = sys.modules.get("amp_tf.hooks.step_times")
    return times.rows() if times is not None else []


def _curves() -> list[Any]:
    ledger = sys.modules.get("amp_tf.loss_scaling.ledger")
    return ledger.curves() if ledger is not None else []
