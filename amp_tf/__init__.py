"""amp_tf: automatic mixed precision for TensorFlow.

``TF_ENABLE_AUTO_MIXED_PRECISION=1 python train.py`` is the whole interface for most users. The
functions of this package do the same from Python, and more: see docs/python.md. Importing amp_tf
imports no TensorFlow; each public name is loaded when it is first used.
"""

from __future__ import annotations

# the name that type checkers know: importing typing costs 9 ms at every interpreter start
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from amp_tf import callbacks as callbacks
    from amp_tf.config import AmpConfig as AmpConfig
    from amp_tf.errors import AmpError as AmpError
    from amp_tf.errors import CallOrderError as CallOrderError
    from amp_tf.errors import ConfigError as ConfigError
    from amp_tf.errors import FileError as FileError
    from amp_tf.errors import GraphError as GraphError
    from amp_tf.errors import OpListError as OpListError
    from amp_tf.errors import RewriteError as RewriteError
    from amp_tf.hooks.scope import scope as scope
    from amp_tf.hooks.summary import report as report
    from amp_tf.hooks.switch import Handle as Handle
    from amp_tf.hooks.switch import disable as disable
    from amp_tf.hooks.switch import enable as enable
    from amp_tf.hooks.switch import is_enabled as is_enabled
    from amp_tf.loss_scaling import LossScaleOptimizer as LossScaleOptimizer
    from amp_tf.loss_scaling.ledger import LossScaleError as LossScaleError
    from amp_tf.loss_scaling.loss_scaler import LossScaler as LossScaler
    from amp_tf.offline.saved_model import convert_saved_model as convert_saved_model
    from amp_tf.oplists.hardware import Hardware as Hardware
    from amp_tf.oplists.op_names import register_op as register_op
    from amp_tf.painting.reasons import Rule as Rule
    from amp_tf.precision import Precision as Precision
    from amp_tf.reporting.reports import RewriteReport as RewriteReport
    from amp_tf.rewriting.pipeline import RewriteResult as RewriteResult
    from amp_tf.rewriting.pipeline import rewrite as rewrite
    from amp_tf.tools.comparing.comparison import Comparison as Comparison
    from amp_tf.tools.comparing.pipeline import compare as compare
    from amp_tf.tools.timing.calls import time as time
    from amp_tf.tools.timing.rounds import Timed as Timed

__version__ = "0.1.0"

_NAMES = {  # by the module that has them
    "callbacks": "callbacks",  # the module itself
    "config": "AmpConfig",
    "errors": "AmpError CallOrderError ConfigError FileError GraphError OpListError RewriteError",
    "hooks.scope": "scope",
    "hooks.summary": "report",
    "hooks.switch": "Handle disable enable is_enabled",
    "loss_scaling": "LossScaleOptimizer",
    "loss_scaling.ledger": "LossScaleError",
    "loss_scaling.loss_scaler": "LossScaler",
    "offline.saved_model": "convert_saved_model",
    "oplists.hardware": "Hardware",
    "oplists.op_names": "register_op",
    "painting.reasons": "Rule",
    "precision": "Precision",
    "reporting.reports": "RewriteReport",
    "rewriting.pipeline": "RewriteResult rewrite",
    "tools.comparing.comparison": "Comparison",
    "tools.comparing.pipeline": "compare",
    "tools.timing.calls": "time",
    "tools.timing.rounds": "Timed",
}
_HOMES = {name: f"amp_tf.{home}" for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'amp_tf' has no attribute {name!r}; its public names: {', '.join(__all__)}"
        )
    import importlib

    home = importlib.import_module(_HOMES[name])
    value = home if _HOMES[name] == f"amp_tf.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
