"""``amp-tf tune -- python train.py``: measures the metric inside the program, which stays as it is.

A metric is a name in the history of Keras' ``fit``, of which the last value of the last ``fit`` counts; or
``module:function``, which is called with the model after each ``fit``, or without arguments as the program ends. It is
imported by every Python below the command, so it imports little.
"""

from __future__ import annotations

import os
import sys

from amp_tf.hooks import imports

TYPE_CHECKING = False  # the name that type checkers know; importing typing costs every start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FOLDER = "_AMP_TF_METRICS"  #: names the folder for the answer; internal, so it is in no table of variables
NAMES = "_AMP_TF_METRIC_NAMES"  #: the metrics, a line each
ANSWER = "metrics.json"
_values: dict[str, float] = {}
_functions: dict[str, Callable[..., Any]] = {}


def install() -> None:
    """Waits for the import of Keras, and for the end of the program, if the command's variables ask for it."""
    if not os.path.isdir(os.environ.get(FOLDER, "")):
        return
    imports.watch("keras", "tf_keras")  # Keras imports TensorFlow, so its own import has begun by then
    for library in ("keras", "tf_keras"):
        imports.after_import(library, _on_import)
    imports.after_import("tensorflow", _on_tensorflow)


def names() -> list[str]:
    """The metrics that are asked for."""
    return os.environ.get(NAMES, "").splitlines()


def _on_import(library: str) -> None:
    from amp_tf.hooks.patches import calling

    model = sys.modules[library].Model
    owner = next(base for base in model.__mro__ if "fit" in vars(base))
    _patches().put(owner, "fit", calling(_fit))


def _on_tensorflow(name: str) -> None:
    import atexit

    atexit.register(_at_exit, os.getpid())


def _patches() -> Any:
    global _installed
    if _installed is None:
        from amp_tf.hooks.patches import Patches

        _installed = Patches()
    return _installed


_installed: Any = None


def _fit(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    result = original(self, *args, **kwargs)
    for name in names():
        if ":" not in name:
            values = getattr(result, "history", {}).get(name)
            if values:
                _values[name] = float(values[-1])
        elif _takes_model(function := _function(name)):
            _values[name] = float(function(self))
    _answer()
    return result


def _at_exit(process: int) -> None:
    if os.getpid() != process:  # a forked child
        return
    for name in names():
        if ":" in name and name not in _values and not _takes_model(function := _function(name)):
            _values[name] = float(function())
    _answer()


def _answer() -> None:
    import json
    from pathlib import Path

    from amp_tf.reporting import files

    if _values:
        files.put(Path(os.environ[FOLDER]) / ANSWER, json.dumps(_values))


def _function(name: str) -> Callable[..., Any]:
    """The function of ``module:function``; the program itself is the module of its file's name."""
    if name not in _functions:
        import importlib

        home, _, attribute = name.partition(":")
        main = sys.modules["__main__"]
        stem = os.path.splitext(os.path.basename(getattr(main, "__file__", None) or ""))[0]
        if home not in (stem, "__main__"):
            sys.path.append(os.getcwd())
            main = importlib.import_module(home)
        _functions[name] = getattr(main, attribute)
    return _functions[name]


def _takes_model(function: Callable[..., Any]) -> bool:
    import inspect

    parameters = inspect.signature(function).parameters.values()
    return any(one.default is one.empty and one.kind is not one.VAR_KEYWORD for one in parameters)
