"""The demo: what it prints and its status on each kind of CPU, and one real run on this one.

What the demo would install is the test environment's here, and it trains smaller images for fewer epochs.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import summary_line
import venvs

from amp_tf.oplists.hardware import Hardware

ROOT = Path(__file__).resolve().parents[2]
ON = "INFO:absl:amp_tf: 3 graphs, {} of 648 nodes converted to bfloat16, 32 casts"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("demo", str(ROOT / "scripts" / "demo"))
    spec = importlib.util.spec_from_loader("demo", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def trained(accuracy: float, milliseconds: float, log: str = "") -> dict[str, Any]:
    return {"validation_accuracy": accuracy, "ms_per_step": milliseconds, "summary": summary_line.find(log)}


def test_with_bfloat16_both_times_are_shown(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    demo.print_table(trained(0.98, 88.7), trained(0.9778, 52.9, ON.format(30)), "mixed precision", with_times=True)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "                      float32  mixed precision",
        "--------------------  -------  ---------------",
        "validation accuracy    98.00%           97.78%  -0.22 points",
        "ms per step (median)     88.7             52.9  1.68 times as fast",
        "nodes converted             0        30 of 648",
        "casts added                 0               32",
    ]


def test_without_bfloat16_no_times_are_shown(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    demo.print_table(trained(0.9733, 20.0), trained(0.9756, 400.0, ON.format(25)), "bfloat16", with_times=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "                     float32   bfloat16",
        "-------------------  -------  ---------",
        "validation accuracy   97.33%     97.56%  +0.23 points",
        "nodes converted            0  25 of 648",
        "casts added                0         32",
    ]


@pytest.mark.parametrize(
    ("accuracy", "milliseconds", "log", "problem"),
    [
        (0.971, 52.9, ON.format(30), ""),
        (0.969, 52.9, ON.format(30), "differ by more than one percentage point"),
        (0.98, 88.7, ON.format(30), "was not faster"),
        (0.98, 52.9, ON.format(0), "Nothing was converted: 3 graphs"),
        (0.98, 52.9, "", "no summary line"),
    ],
)
def test_the_status_says_whether_all_is_as_promised(
    accuracy: float,
    milliseconds: float,
    log: str,
    problem: str,
    demo: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    off, on = trained(0.98, 88.7), trained(accuracy, milliseconds, log)
    problems = [*demo.judge_accuracy(off, on), *demo.judge_speed(off, on)]
    assert demo.judge(problems, "It was faster.") == (1 if problem else 0)
    assert (problem or "It was faster.") in capsys.readouterr().out


def test_a_model_that_goes_wrong_on_a_gpu_is_not_as_promised(demo: ModuleType) -> None:
    assert demo.judge_verdict(0) == []
    assert demo.judge(demo.judge_verdict(1), "It is healthy.") == 1


@pytest.mark.slow
def test_the_demo_trains_twice_and_shows_what_this_cpu_is_good_for(tmp_path: Path) -> None:
    venv = venvs.make(tmp_path / "venv")
    (site_packages,) = venv.path.glob("lib/python*/site-packages")
    (site_packages / "tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    venv.write_stamp(venvs.fingerprint(sys.version, "demo"))
    command = [sys.executable, "scripts/demo", "--venv", str(venv.path), "--epochs", "4", "--size", "8"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert ended.stderr == ""
    points = re.search(r"^validation accuracy +\d+\.\d\d% +\d+\.\d\d% +([-+.\d]+) points$", ended.stdout, re.MULTILINE)
    assert points is not None, ended.stdout
    is_as_promised = abs(float(points[1])) <= 1
    if Hardware.detect_cpu().cpu_gains:  # images so small may not gain: amp_tf may convert nothing, or not be faster
        faster = re.search(r"([\d.]+) times as fast$", ended.stdout, re.MULTILINE)
        assert faster is not None, ended.stdout
        is_as_promised &= float(faster[1]) > 1 and "Nothing was converted" not in ended.stdout
    else:
        assert "This CPU is not faster in 16 bit" in ended.stdout
        assert "times as fast" not in ended.stdout
        assert re.search(r"^nodes converted +0 +[1-9]\d* of \d+$", ended.stdout, re.MULTILINE), ended.stdout
        assert re.search(r"^  sequential: healthy in float16 \([1-9]\d* of \d+ nodes;", ended.stdout, re.MULTILINE)
    assert ended.returncode == (0 if is_as_promised else 1), ended.stdout
