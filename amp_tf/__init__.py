"""amp_tf: automatic mixed precision for TensorFlow.

``TF_ENABLE_AUTO_MIXED_PRECISION=1 python train.py`` is the whole interface for most users. What is exported here does
the same from Python, and more: see docs/python.md. Importing amp_tf imports no TensorFlow; each public name is loaded
when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the name that type checkers know: importing typing costs 9 ms at every interpreter start
if TYPE_CHECKING:
    from typing import Any

    from amp_tf import callbacks
    from amp_tf.config import AmpConfig
    from amp_tf.errors import AmpError, CallOrderError, ConfigError, FileError, GraphError, OpListError, RewriteError
    from amp_tf.hooks.scope import scope
    from amp_tf.hooks.summary import report
    from amp_tf.hooks.switch import Handle, disable, enable, is_enabled
    from amp_tf.loss_scaling import LossScaleOptimizer
    from amp_tf.loss_scaling.ledger import LossScaleError
    from amp_tf.loss_scaling.loss_scaler import LossScaler
    from amp_tf.offline.saved_model import convert_saved_model
    from amp_tf.oplists.hardware import Hardware
    from amp_tf.oplists.op_names import register_op
    from amp_tf.painting.reasons import Rule
    from amp_tf.precision import Precision
    from amp_tf.reporting.schema import RewriteReport
    from amp_tf.rewriting.pipeline import RewriteResult, rewrite
    from amp_tf.tools.comparing.comparison import Comparison
    from amp_tf.tools.comparing.pipeline import compare
    from amp_tf.tools.tuning import tune
    from amp_tf.tools.tuning.result import Tuned

__version__ = "0.1.0"

_HOMES = {
    "AmpConfig": "amp_tf.config",
    "AmpError": "amp_tf.errors",
    "CallOrderError": "amp_tf.errors",
    "Comparison": "amp_tf.tools.comparing.comparison",
    "ConfigError": "amp_tf.errors",
    "FileError": "amp_tf.errors",
    "GraphError": "amp_tf.errors",
    "Handle": "amp_tf.hooks.switch",
    "Hardware": "amp_tf.oplists.hardware",
    "LossScaleError": "amp_tf.loss_scaling.ledger",
    "LossScaleOptimizer": "amp_tf.loss_scaling",
    "LossScaler": "amp_tf.loss_scaling.loss_scaler",
    "OpListError": "amp_tf.errors",
    "Precision": "amp_tf.precision",
    "RewriteError": "amp_tf.errors",
    "RewriteReport": "amp_tf.reporting.schema",
    "RewriteResult": "amp_tf.rewriting.pipeline",
    "Rule": "amp_tf.painting.reasons",
    "callbacks": "amp_tf.callbacks",  # the module itself
    "compare": "amp_tf.tools.comparing.pipeline",
    "convert_saved_model": "amp_tf.offline.saved_model",
    "disable": "amp_tf.hooks.switch",
    "enable": "amp_tf.hooks.switch",
    "is_enabled": "amp_tf.hooks.switch",
    "register_op": "amp_tf.oplists.op_names",
    "report": "amp_tf.hooks.summary",
    "rewrite": "amp_tf.rewriting.pipeline",
    "scope": "amp_tf.hooks.scope",
    "tune": "amp_tf.tools.tuning",
    "Tuned": "amp_tf.tools.tuning.result",
}

__all__ = [
    "AmpConfig",
    "AmpError",
    "CallOrderError",
    "Comparison",
    "ConfigError",
    "FileError",
    "GraphError",
    "Handle",
    "Hardware",
    "LossScaleError",
    "LossScaleOptimizer",
    "LossScaler",
    "OpListError",
    "Precision",
    "RewriteError",
    "RewriteReport",
    "RewriteResult",
    "Rule",
    "Tuned",
    "callbacks",
    "compare",
    "convert_saved_model",
    "disable",
    "enable",
    "is_enabled",
    "register_op",
    "report",
    "rewrite",
    "scope",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'amp_tf' has no attribute {name!r}; its public names: {', '.join(__all__)}")
    import importlib

    home = importlib.import_module(_HOMES[name])
    value = home if _HOMES[name] == f"amp_tf.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
