"""Steps for GPUs that are not there, as they are exported and as XLA compiles them."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.gpu import compiled, environment, session, targets
from benchmarks.gpu.__main__ import run_command
from benchmarks.models import cases
from tests import processes

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("float32", "amp_bfloat16", "amp_float16", "policy_float16")


def run(*arguments):
    """The output of a command of the benchmark."""
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    ended = processes.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return str(ended.stdout)


def test_tables_are_those_of_their_rows():
    folder = ROOT / "benchmarks" / "gpu"
    rows = compiled.read(folder / "compiled.json")
    assert (folder / "compiled.md").read_text() == compiled.table(rows) + "\n"
    assert {row["model"] for row in rows} == set(cases.CASES)
    assert {row["target"] for row in rows} == set(targets.TARGETS)


def test_a_step_is_compiled_for_each_gpu_without_one(tmp_path):
    if not environment.PYTHON.exists():
        pytest.skip("XLA's compiler for GPUs is 1.2 GB: python -m benchmarks.gpu compile makes it")
    arguments = [
        "compile",
        "--models",
        "ncf",
        "--size",
        "tiny",
        "--ways",
        "train",
        "--variants",
        "float32,amp_float16",
    ]
    printed = run(*arguments, "--out", str(tmp_path), "--json", str(tmp_path / "rows.json"))
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["target"], row["variant"]) for row in rows] == [
        (target, variant) for target in targets.TARGETS for variant in ("float32", "amp_float16")
    ]
    for row in rows:
        assert set(row["products"]) == {"f32" if row["variant"] == "float32" else "f16"}
        assert row["temp_mib"] > 0 < row["roofline_us"]
    assert "### NVIDIA H100 80GB HBM3" in printed


def test_each_variant_multiplies_in_its_own_type(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        subprocess, "Popen", processes.start
    )  # the process of each variant is a fork
    arguments = [
        "--models",
        "ncf",
        "--size",
        "tiny",
        "--variants",
        ",".join(VARIANTS),
        "--out",
        str(tmp_path),
    ]
    assert run_command(["export", *arguments]) == 0

    def manifest(variant, way="train"):
        return json.loads((tmp_path / f"ncf-{way}-{variant}.json").read_text())

    products = {variant: Counter(manifest(variant)["products"]) for variant in VARIANTS}
    count = sum(products["float32"].values())
    assert count > 0
    types = {
        "float32": "f32",
        "amp_bfloat16": "bf16",
        "amp_float16": "f16",
        "policy_float16": "f16",
    }
    assert products == {variant: {f"dot {types[variant]}": count} for variant in VARIANTS}
    assert manifest("float32")["casts"] == 0 < manifest("amp_float16")["casts"]
    assert {row["role"] for row in manifest("amp_float16", "predict")["arguments"]} == {
        "input",
        "weight",
    }


@pytest.mark.slow
def test_a_tiny_session_measures_a_model_and_a_program_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", processes.start)  # the process of each part is a fork
    before = signal.getsignal(signal.SIGTERM)
    try:
        status = run_command(["session", str(tmp_path), "--tiny"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert status == 0, [path.read_text()[-2000:] for path in tmp_path.glob("*.log")]
    found = json.loads((tmp_path / "session.json").read_text())
    parts = ("tests", "steps", "accuracy")
    assert [found[part]["ended"] for part in parts] == ["exit status 0"] * 3
    compared = session.TINY_MODES.split(",")
    rows = json.loads((tmp_path / "steps.json").read_text())["rows"]
    assert [(row["model"], row["mode"]) for row in rows] == [
        (session.TINY_MODEL, mode) for mode in compared
    ]
    for row in rows:
        assert len(row["ms"]) == 2
        assert row["peak_mib"] > 100
        assert (row["converted"] > 0) == row["mode"].startswith("amp_")
    programs = json.loads((tmp_path / "accuracy.json").read_text())
    assert sorted(row["mode"] for row in programs) == sorted(compared)
    assert not any(row["error"] for row in programs)
    assert "| NCF" in (tmp_path / "steps.log").read_text()


def test_a_part_is_stopped_when_its_time_is_over_and_keeps_what_it_wrote(tmp_path, monkeypatch):
    """The process that it started goes with it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "long_part.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    ended = session.run(session.Part("long", 1.0, "long_part"), tmp_path, 10.0)
    assert ended["ended"] == "stopped when its time was over"
    child = int((tmp_path / "long.log").read_text())
    deadline = time.monotonic() + 60
    while processes.is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)
