"""``python -m benchmarks.public``: one of its programs, in two modes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_program_runs_in_two_modes(tmp_path):
    rows = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks.public", "--only", "ranking", "--seeds", "1", "--rows", str(rows)]
    command += ["--modes", "float32,all listed", "--", "--steps", "4", "--batch", "4"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode == 0, ended.stderr
    found = {row["mode"]: row for row in json.loads(rows.read_text())}
    assert found.keys() == {"float32", "all listed"}
    for row in found.values():
        assert not row["error"]
        assert 0 <= row["value"] <= 1
        assert row["batch"] == 4
        assert min(row["ms"].values()) > 0
        assert row["mib"] > 0
    assert found["all listed"]["converted"] > 0
    assert "| ranking | 4 | float32 | AUC" in ended.stdout
