"""Writes each graph before and after its rewrite, the op lists and the reason for every node (``LOG_PATH``).

The file names are those of TensorFlow's own pass, so that tools that read them go on working; ``reasons_….txt`` is new,
and so is ``failure_….txt``, which stands in its place and in that of the graph after a rewrite that failed.
``index.tsv`` has a line for each rewrite: the end of its files' names, the way in which the graph came, its function,
the name scopes that hold most of its nodes (layers and models give theirs), and what was converted.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import itertools
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import logging

from amp_tf.config import LIST_NAMES, AmpConfig
from amp_tf.errors import AmpError
from amp_tf.graph.names import scopes
from amp_tf.graph.wire import parse_graph
from amp_tf.oplists.targets import Resolution
from amp_tf.reporting.schema import RewriteReport

INDEX = "index.tsv"
_COLUMNS = ("files", "way", "function", "scopes", "nodes", "converted", "casts")
_SCOPES_SHOWN = 3
_numbers = itertools.count()


class Log:
    """The files of one rewrite; writes nothing where the configuration names no folder.

    A folder that cannot be written is a warning, once.
    The graph came by a way: ``"offline"``, ``"grappler"`` or ``"xla"``, as in reports.
    """

    def __init__(self, config: AmpConfig, resolution: Resolution, way: str = "offline") -> None:
        self._path, self._resolution, self._way = config.log_path or "", resolution, way
        # Workers that share a folder begin together, and would have number and time in common.
        self._stamp = f"{os.getpid()}-{next(_numbers)}_{time.time_ns() // 1_000_000}"

    def write_before(self, graph: Any) -> None:
        """Writes what is known before a rewrite of a FunctionDef or GraphDef; the latter may be serialized."""
        if not self._path:
            return
        self._write_graph("preop", graph)
        target = self._resolution.target
        lists = ["\n".join([f"{name.capitalize()}List:", *target.lists.members(name)]) for name in LIST_NAMES if target]
        text = "\n\n".join(lists) or f"nothing is converted: {self._resolution.why_none}"
        self._write("paintbuckets_AutoMixedPrecision", ".txt", f"{text}\n")

    def write_after(self, graph: Any, report: RewriteReport) -> None:
        """Writes what is known after it; ``reasons_….txt`` has for each node precision, op, function, name, reason."""
        if not self._path:
            return
        self._write_graph("AutoMixedPrecision", graph)
        rows = ((node.precision.value, node.op, node.function, node.name, str(node.reason)) for node in report.nodes)
        self._write("reasons_AutoMixedPrecision", ".txt", "\n".join(map("\t".join, rows)) + "\n")
        for graph in report.graphs:
            # The outermost name scopes that hold most nodes tell one model from another.
            counts = collections.Counter(around[0] for name in graph.painting.view.names if (around := scopes(name)))
            most = " ".join(scope for scope, _ in counts.most_common(_SCOPES_SHOWN))
            self._add_to_index(graph.function, most, graph.total, graph.converted, graph.casts)

    def write_failure(self, error: AmpError) -> None:
        """Writes why there is nothing after it: the graph is broken, or the result did not pass verification."""
        if not self._path:
            return
        self._write("failure_AutoMixedPrecision", ".txt", f"{type(error).__name__}: {error}\n")
        self._add_to_index("", "", "failed", "failed", "failed")

    def _add_to_index(self, *columns: object) -> None:
        line = "\t".join(map(str, (self._stamp, self._way, *columns)))
        with _warned_of(self._path):
            file = Path(self._path) / INDEX
            with contextlib.suppress(FileExistsError):
                _append(file, "\t".join(_COLUMNS), os.O_EXCL)
            _append(file, line)

    def _write_graph(self, tag: str, graph: Any) -> None:
        graph = parse_graph(graph) if isinstance(graph, bytes) else graph
        self._write(f"graphdef_{tag}", ".pb", graph.SerializeToString())
        self._write(f"graphdef_{tag}", ".pb.txt", str(graph))

    def _write(self, stem: str, suffix: str, content: str | bytes) -> None:
        from amp_tf.reporting import files  # where a folder is named, as nothing else of a rewrite needs it

        with _warned_of(self._path):
            folder = Path(self._path)
            folder.mkdir(parents=True, exist_ok=True)
            files.put(folder / f"{stem}_{self._stamp}{suffix}", content)


def _append(file: Path, line: str, *flags: int) -> None:
    """In one write, because processes share the file; not through a link, nor to a pipe on which nobody may read.

    With ``O_EXCL`` the file is there with its line, or not at all.
    """
    descriptor = os.open(
        file, sum(flags, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK), 0o666
    )
    with os.fdopen(descriptor, "ab", buffering=0) as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, f"{INDEX} is no file", str(file))
        data = f"{line}\n".encode()
        try:
            if opened.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        except OSError:
            if os.O_EXCL in flags:
                file.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _warned_of(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _warn_once(path, error.strerror or str(error))


@functools.lru_cache(maxsize=64)
def _warn_once(path: str, why: str) -> None:
    logging.warning(
        "amp_tf: TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH: cannot write to %r (%s). "
        "Rewrites go on without log files; name a folder that can be written.",
        path,
        why,
    )
