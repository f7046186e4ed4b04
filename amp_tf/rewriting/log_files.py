"""Writes each graph before and after its rewrite, the op lists and the reason for every node (``LOG_PATH``).

The file names are those of TensorFlow's own pass, so that tools that read them go on working; ``reasons_….txt`` is new.
"""

from __future__ import annotations

import functools
import itertools
import time
from pathlib import Path
from typing import Any

from absl import logging

from amp_tf.config import LIST_NAMES, AmpConfig
from amp_tf.oplists.targets import Resolution
from amp_tf.reporting.schema import RewriteReport

_numbers = itertools.count()


def write(config: AmpConfig, before: Any, after: Any, report: RewriteReport, resolution: Resolution) -> None:
    """Writes the files if the configuration asks for them; a folder that cannot be written is a warning, once.

    Args:
        before, after: the GraphDef or FunctionDef, its function library included.
        report: of the rewrite; ``reasons_….txt`` has a line for each node: precision, op, function, name, reason.
        resolution: holds the op lists.
    """
    if not config.log_path:
        return
    folder = Path(config.log_path)
    stamp = f"{next(_numbers)}_{time.time_ns() // 1_000_000}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for tag, graph in (("preop", before), ("AutoMixedPrecision", after)):
            (folder / f"graphdef_{tag}_{stamp}.pb").write_bytes(graph.SerializeToString())
            (folder / f"graphdef_{tag}_{stamp}.pb.txt").write_text(str(graph), encoding="utf-8")
        (folder / f"paintbuckets_AutoMixedPrecision_{stamp}.txt").write_text(_buckets(resolution), encoding="utf-8")
        (folder / f"reasons_AutoMixedPrecision_{stamp}.txt").write_text(_reasons(report), encoding="utf-8")
    except OSError as error:
        _warn_once(config.log_path, error.strerror or str(error))


@functools.lru_cache(maxsize=64)
def _warn_once(path: str, why: str) -> None:
    logging.warning(
        "amp_tf: TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH: cannot write to %r (%s). "
        "Rewrites go on without log files; name a folder that can be written.",
        path,
        why,
    )


def _buckets(resolution: Resolution) -> str:
    if resolution.target is None:
        return f"nothing is converted: {resolution.why_none}\n"
    lists = resolution.target.lists
    parts = ("\n".join([f"{name.capitalize()}List:", *lists.members(name)]) for name in LIST_NAMES)
    return "\n\n".join(parts) + "\n"


def _reasons(report: RewriteReport) -> str:
    lines = (f"{node.precision.value}\t{node.op}\t{node.function}\t{node.name}\t{node.reason}" for node in report.nodes)
    return "\n".join(lines) + "\n"
