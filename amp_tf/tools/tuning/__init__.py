"""Finds the smallest part of a model that has to stay in float32, by training it, and writes it to
a file.

``amp-tf tune -- python train.py`` measures the metric inside the program, which stays as it is, by
what stands here.

A metric is a name in the history of Keras' ``fit``, of which the last value of the last ``fit``
counts; or ``module:function``, which is called with the model after each ``fit``, or as the program
ends if it takes no arguments or is defined below. The module may be the program itself, by whatever
name or way it was started: imported once more, it would have weights that nobody trained. Every
Python below the command imports this package, so it imports little.
"""

from __future__ import annotations

import os
import sys

from amp_tf.hooks import imports

TYPE_CHECKING = False  # the name that type checkers know; importing typing costs every start
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

#: names the folder for the answer; internal, so it is in no table of variables
FOLDER = "_AMP_TF_METRICS"
NAMES = "_AMP_TF_METRIC_NAMES"  #: the metrics, a line each
ANSWER = "metrics.json"
_answer: dict[str, Any] = {"values": {}, "history": [], "failure": ""}
_model: list[Any] = []  # that of the last fit
_programs: list[
    tuple[ModuleType, str, str]
] = []  # what ran as __main__, its path, its module's name
_folder = ""  # in which Python was started


def install() -> None:
    """Waits for the import of Keras, and for the end of the program, if the command's variables ask
    for it.
    """
    if not os.path.isdir(os.environ.get(FOLDER, "")):
        return
    global _folder
    _folder = os.getcwd()
    imports.watch(
        "keras", "tf_keras"
    )  # Keras imports TensorFlow, so its own import has begun by then
    for library in ("keras", "tf_keras"):
        imports.after_import(library, _on_import)
    imports.after_import("tensorflow", _on_tensorflow)


def _on_import(library: str) -> None:
    from amp_tf.hooks.patches import Patches

    Patches().put(sys.modules[library].Model, "fit", _fit)  # as long as the process lives


def _on_tensorflow(name: str) -> None:
    import atexit

    _note_program()
    atexit.register(_at_exit, os.getpid())


def _note_program() -> None:
    """Records what runs as ``__main__``: as the program ends, Python has taken the file from it, or
    runpy it.
    """
    main = sys.modules["__main__"]
    if all(main is not known for known, _, _ in _programs):
        file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
        stem = (
            os.path.splitext(os.path.realpath(file))[0].removesuffix(f"{os.sep}__init__")
            if file
            else ""
        )
        _programs.append((main, f"{os.sep}{stem}", spec.name if spec else ""))


def _fit(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    result = original(self, *args, **kwargs)
    _note_program()
    history = getattr(result, "history", {})
    _answer["history"] = [*history]
    for name in os.environ.get(NAMES, "").splitlines():
        if ":" not in name:
            if history.get(name):
                _answer["values"][name] = float(history[name][-1])
        elif (function := _function(name)) and _takes_model(function):
            _answer["values"][name] = float(function(self))
    _model[:] = [self]
    _write()
    return result


def _at_exit(process: int) -> None:
    if os.getpid() != process:  # a forked child
        return
    _note_program()
    for name in os.environ.get(NAMES, "").splitlines():
        try:
            if ":" in name and name not in _answer["values"]:
                function = _function(name, at_exit=True)
                if _model or not _takes_model(function):
                    _answer["values"][name] = float(
                        function(*_model) if _takes_model(function) else function()
                    )
        except Exception as error:
            _answer["failure"] = f"{name}: {type(error).__name__}: {error}"
    _write()


def _write() -> None:
    import json
    from pathlib import Path

    from amp_tf.reporting import files

    if any(_answer.values()):  # of a Python that trains nothing there is none
        files.put(Path(os.environ[FOLDER]) / ANSWER, json.dumps(_answer))


def _function(name: str, at_exit: bool = False) -> Any:
    """The function of ``module:function``, of the program itself where that is the module, or None
    so far.
    """
    import importlib

    home, _, attribute = name.partition(":")
    if _folder not in sys.path:
        sys.path.append(_folder)
    # A program has its module's name, or that of its file. Asking Python would import its packages.
    ending = os.sep + home.replace(".", os.sep)
    programs = [
        main
        for main, stem, module in _programs
        if stem.endswith(ending) or home in ("__main__", module)
    ]
    module = (
        next((main for main in programs if hasattr(main, attribute)), None) or (*programs, None)[0]
    )
    if module and not at_exit:
        return getattr(module, attribute, None)
    return getattr(module or importlib.import_module(home), attribute)


def _takes_model(function: Callable[..., Any]) -> bool:
    import inspect

    parameters = inspect.signature(function).parameters.values()
    return any(one.default is one.empty and one.kind is not one.VAR_KEYWORD for one in parameters)
