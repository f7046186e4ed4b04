"""The benchmark of the rewrite's time: its graphs are converted, and all figures are there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests import processes

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "rewrite_time.py"


def test_a_synthetic_graph_is_measured(tmp_path):
    command = [sys.executable, str(BENCHMARK), "synthetic-1k", "--rounds", "1", "--json", "--cache", str(tmp_path)]
    done = processes.run(
        command, fresh="it measures memory", capture_output=True, text=True
    )  # the status says whether goals are met
    assert done.stdout, done.stderr
    (found,) = json.loads(done.stdout[done.stdout.index("{") :]).values()
    assert found["nodes"] == 992
    assert min(found[name] for name in ("amp_tf", "tensorflow_clock", "memory", "size")) > 0
