"""One rewrite from its settings to its log files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError
from amp_tf.graph.calls import find_loop_bodies
from amp_tf.graph.templates import Templates
from amp_tf.oplists import op_names
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import SUCCESSORS
from amp_tf.oplists.targets import resolve_target
from amp_tf.reporting.schema import RewriteReport
from amp_tf.rewriting import log_files
from amp_tf.rewriting.form import Job
from amp_tf.rewriting.garbage import pause_garbage_collector


class Run:
    """Settles what is converted here, and writes the log files.

    Args:
        config: what to convert; the environment's settings by default.
        hardware: the devices to rewrite for; this machine's CPU by default.
        has_preserved: whether all nodes that are to be preserved must be there.

    Raises:
        ConfigError: a setting from the environment means nothing.
        OpListError: a change of the lists names an op that TensorFlow does not know, or contradicts another.
    """

    def __init__(self, config: AmpConfig | None, hardware: Hardware | None, *, has_preserved: bool = False) -> None:
        self._config = AmpConfig.from_env() if config is None else config
        op_names.check(self._config)
        self._resolution = resolve_target(self._config, Hardware.detect_cpu() if hardware is None else hardware)
        self._log = log_files.Log(self._config)
        self._has_preserved = has_preserved

    def job(self, library: Any, preserve: frozenset[str], root: Any = None) -> Job:
        """What is to be done with a graph or function.

        Args:
            library: the functions that it may call.
            preserve: names of its nodes that stay as they are.
            root: a function that is not in the library, and calls some of it.
        """
        functions = [*(library.function if library else ()), *([root] if root else ())]
        return Job(
            self._config,
            self._resolution,
            Templates(library, SUCCESSORS),
            preserve,
            self._has_preserved,
            find_loop_bodies(functions),
        )

    @contextlib.contextmanager
    def working(self, read: Callable[[], Any]) -> Iterator[None]:
        """For the work itself.

        Args:
            read: gives the GraphDef or FunctionDef as it came.
        """
        self._log.write_before(read, self._resolution)
        with pause_garbage_collector():
            try:
                yield
            except AmpError as error:
                self._log.write_failure(error)
                raise

    def end(self, read: Callable[[], Any], report: RewriteReport) -> None:
        """After the work.

        Args:
            read: gives the new GraphDef or FunctionDef.
            report: what was done.
        """
        self._log.write_after(read, report)
