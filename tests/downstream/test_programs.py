"""Unchanged programs of the kinds that people run: with the variable they end as without it, and work in 16 bit."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hooks import running

PROGRAMS = Path(__file__).resolve().parent / "programs"
POLICY = [str(PROGRAMS / "keras_policy.py"), "mixed_float16"]
QUIET = {"PYTHONWARNINGS": "ignore"}

# bfloat16 has 8 significant bits; the programs train for 30 to 90 steps on losses of about 1.
RELATIVE, ABSOLUTE = 0.05, 0.03

# The precision is said, because these programs are small: auto would leave in float32 what is not faster.
ON = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}

# In the order in which they share a process: later ones change settings of the whole process. Deterministic cross
# entropy makes a NaN on purpose, so the numeric checks need a process of their own.
TOGETHER = (
    "tensorboard_profile",
    "bert_fine_tune",
    "keras_policy",
    "op_determinism",
)
ALONE = ("check_numerics",)
NAMES = (*TOGETHER, *ALONE)
# What a program is told beside the line at the end of its process.
TOLD = {"keras_policy": "Keras policy 'mixed_bfloat16': the program asks for 16 bit by itself"}
NEEDS = {"tensorboard_profile": "tensorboard", "bert_fine_tune": "tf_keras"}
# Runs programs one after the other; what each wrote and how much was converted for it are told apart by its name.
DRIVER = f"""
import runpy, sys
names, sys.argv[1:] = sys.argv[1:], []
for name in names:
    print("begin", name, flush=True)
    print("begin", name, file=sys.stderr, flush=True)
    runpy.run_path(f"{PROGRAMS}/{{name}}.py", run_name="__main__")
    sys.modules["keras"].config.set_dtype_policy("float32")
    if "amp_tf" in sys.modules:
        print("converted", sys.modules["amp_tf"].report().converted, flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Run:
    """One program: the JSON that it printed, how many nodes were converted for it, and what amp_tf told it."""

    result: dict[str, Any]
    converted: int
    warnings: list[str]


def is_missing(name: str) -> bool:
    return name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None


@pytest.fixture(scope="module")
def in_float32(site_folder: Path) -> dict[str, Run]:
    runs = run_together(TOGETHER, site_folder, {}) | run_together(ALONE, site_folder, {})
    assert not any(run.converted or run.warnings for run in runs.values())
    return runs


@pytest.fixture(scope="module")
def in_16_bit(site_folder: Path) -> dict[str, Run]:
    return run_together(TOGETHER, site_folder, ON) | run_together(ALONE, site_folder, ON)


def run_together(names: tuple[str, ...], site_folder: Path, variables: dict[str, str]) -> dict[str, Run]:
    """Runs programs in one process."""
    names = tuple(name for name in names if not is_missing(name))
    ended = running.run(["-c", DRIVER, *names], site_folder, QUIET | variables, seconds=400)
    told, out = _by_program(ended.err), _by_program(ended.out)
    runs, before = {}, 0
    for name in names:
        results = [line for line in out[name].splitlines() if line.startswith("{")]
        counts = [int(line.split()[1]) for line in out[name].splitlines() if line.startswith("converted ")]
        now = counts[-1] if counts else 0
        warnings = running.Ended(0, "", told[name]).warnings
        runs[name], before = Run(json.loads(results[-1]), now - before, warnings), now
    return runs


def _by_program(text: str) -> dict[str, str]:
    """What was written, by the name of the program that ran meanwhile."""
    _, *parts = re.split(r"^begin (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_program_ends_as_in_float32(name: str, in_float32: dict[str, Run], in_16_bit: dict[str, Run]) -> None:
    if is_missing(name):
        pytest.skip(f"{NEEDS[name]} is not installed")
    run = in_16_bit[name]
    told = TOLD.get(name, "")
    assert len(run.warnings) == bool(told)
    assert all(told in line for line in run.warnings)
    assert run.converted > 0
    expected, result = in_float32[name].result, run.result
    assert result.keys() == expected.keys()
    assert result != expected  # else nothing was computed in bfloat16
    for key, value in expected.items():
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(result[key], value, rtol=RELATIVE, atol=ABSOLUTE, err_msg=key)
        else:
            assert result[key] == value, key


def test_determinism_and_numeric_checks_keep_their_promise(
    in_float32: dict[str, Run], in_16_bit: dict[str, Run]
) -> None:
    for runs in (in_float32, in_16_bit):
        assert runs["op_determinism"].result["same"] is True
        assert runs["check_numerics"].result["found"] == "NaN"


def test_keras_own_float16_policy_keeps_its_types_and_its_one_loss_scale(site_folder: Path) -> None:
    alone = running.run(POLICY, site_folder, QUIET)
    both = running.run(POLICY, site_folder, QUIET | {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"})
    assert [line.partition("amp_tf: ")[2] for line in both.warnings] == [
        "Keras policy 'mixed_float16': the program asks for 16 bit by itself: its layers keep the types that the "
        "policy gives them and amp_tf converts what they leave in float32. Take one of the two: remove the policy, or "
        "unset TF_ENABLE_AUTO_MIXED_PRECISION."
    ]
    assert both.converted > 0
    expected, result = alone.result, both.result
    assert result["optimizers"] == expected["optimizers"] == ["keras.LossScaleOptimizer", "keras.Adam"]
    assert (result["computes_in"], result["weights"]) == ("float16", "float32")
    np.testing.assert_allclose(result["loss"], expected["loss"], rtol=RELATIVE, atol=ABSOLUTE)
