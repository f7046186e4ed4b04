"""One program in one mode. It reads commands from stdin, JSON by line, and answers on stdout.

``{"do": "go", "seconds": …}`` lets the program run on for about so long; it stops where it next
calls a ``tf.function`` (a step of ``fit`` is such a call), or ends. The program is the user's file
as it is, run as ``__main__``. From outside it gets the global policy of its Keras, if the mode is
one, or amp_tf's variable in the environment.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import io
import json
import os
import runpy
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.memory import resident
from benchmarks.step_time import worker
from benchmarks.step_time.modes import Mode, modes

PROGRAMS = Path(__file__).parent / "programs"
FIRST = 2  #: calls of a function that are not timed: they trace and warm up


class Turns:
    """Lets a program run from command to command, and notes how long the calls of its functions
    take.

    Args:
        answer: sends what the parent waits for.
        commands: lines of JSON.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], None], commands: Any) -> None:
        self._answer = answer
        self._commands = commands
        self._is_inside = False
        # The turn and the ms of each call, by function. It is kept, or its id may return.
        self._calls: dict[int, tuple[Any, list[tuple[int, float]]]] = {}
        self.turn = 0
        self._begin()

    def _begin(self) -> None:
        self._until = time.perf_counter() + json.loads(self._commands.readline())["seconds"]
        self.turn += 1

    def call(
        self, original: Callable[..., Any], function: Any, *arguments: Any, **named: Any
    ) -> Any:
        """Calls a ``tf.function``; one that is called inside of another is a part of it."""
        if self._is_inside:
            return original(function, *arguments, **named)
        if time.perf_counter() > self._until:
            self._answer({})
            self._begin()
        self._is_inside = True
        begin = time.perf_counter()
        try:
            return original(function, *arguments, **named)
        finally:
            self._is_inside = False
            ms = (time.perf_counter() - begin) * 1e3
            self._calls.setdefault(id(function), (function, []))[1].append((self.turn, ms))

    def steps(self) -> dict[int, float]:
        """The median milliseconds of a step in each turn; a step is a call of the function that
        took most time.
        """
        kinds = [calls[FIRST:] for _, calls in self._calls.values()]
        by_turn = collections.defaultdict(list)
        for turn, ms in max(kinds, key=lambda calls: sum(ms for _, ms in calls), default=[]):
            by_turn[turn].append(ms)
        return {turn: round(statistics.median(found), 3) for turn, found in by_turn.items()}


def run(name: str, mode: Mode, arguments: list[str], turns: Turns) -> dict[str, Any]:
    """Runs a program; what it printed last and what it took, or its error."""
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    path = PROGRAMS / f"{name}.py"
    uses_tf_keras = "import tf_keras" in path.read_text()
    keras = importlib.import_module("tf_keras" if uses_tf_keras else "keras")
    keras.mixed_precision.set_global_policy(mode.policy)
    original = polymorphic_function.Function.__call__
    polymorphic_function.Function.__call__ = lambda *a, **k: turns.call(original, *a, **k)
    before = resident("VmRSS")
    printed = io.StringIO()
    answer: dict[str, Any] = {}
    sys.argv = [str(path), *arguments]
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(path), run_name="__main__")
        answer |= json.loads(printed.getvalue().strip().splitlines()[-1])
    except Exception as error:
        traceback.print_exc()
        answer["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    answer["mib"] = round(resident("VmHWM") - before, 1)
    answer["ms"] = turns.steps()
    answer["converted"], answer["casts"] = worker.conversions(mode)
    return answer


def main() -> int:
    options = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to stderr

    def answer(found: dict[str, Any]) -> None:
        print(json.dumps(found), file=answers, flush=True)

    mode = modes(options["precision"])[options["mode"]]
    worker.set_up(mode)
    turns = Turns(answer, sys.stdin)
    answer({"ended": run(options["program"], mode, options["arguments"], turns)})
    sys.stdin.readline()  # until it is closed: the parent stops it
    return 0


if __name__ == "__main__":
    sys.exit(main())
