"""Unchanged programs of the kinds that people run: with the variable they end as without it, and work in 16 bit."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hooks import running

PROGRAMS = Path(__file__).resolve().parent / "programs"

# bfloat16 has 8 significant bits; the programs train for 30 to 90 steps on losses of about 1.
RELATIVE, ABSOLUTE = 0.05, 0.03

# The precision is said, because these programs are small: auto would leave in float32 what does not pay.
ON = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}

# In the order of the float32 process: later ones change settings of the whole process. Deterministic cross entropy
# makes a NaN on purpose, so the numeric checks need a process of their own.
TOGETHER = (
    "custom_train_step",
    "gan",
    "data_pipeline",
    "tensorboard_profile",
    "reinforcement",
    "monitored_training",
    "bert_fine_tune",
    "keras_policy",
    "op_determinism",
)
ALONE = ("check_numerics",)
NAMES = (*TOGETHER, *ALONE)
# What a program is told beside the line at its end.
TOLD = {"keras_policy": "Keras policy 'mixed_bfloat16': the program asks for 16 bit by itself"}
NEEDS = {"tensorboard_profile": "tensorboard", "bert_fine_tune": "tf_keras"}


def is_missing(name: str) -> bool:
    return name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def in_float32(site_folder: Path) -> dict[str, dict[str, Any]]:
    """The results of all programs without the variable, from as few processes as possible."""
    return run_together(TOGETHER, site_folder) | run_together(ALONE, site_folder)


def run_together(names: tuple[str, ...], site_folder: Path) -> dict[str, dict[str, Any]]:
    names = tuple(name for name in names if not is_missing(name))
    code = (
        "import runpy, sys\n"
        f"for name in {names!r}:\n"
        f"    runpy.run_path(f'{PROGRAMS}/{{name}}.py', run_name='__main__')\n"
        "    sys.modules['keras'].config.set_dtype_policy('float32')\n"
    )
    ended = running.run(["-W", "ignore", "-c", code], site_folder, {}, seconds=400)
    assert ended.status == 0, ended.err
    assert "amp_tf" not in ended.err
    lines = [line for line in ended.out.splitlines() if line.startswith("{")]
    return {name: json.loads(line) for name, line in zip(names, lines, strict=True)}


@pytest.mark.parametrize("name", NAMES)
def test_program_ends_as_in_float32(name: str, in_float32: dict[str, dict[str, Any]], site_folder: Path) -> None:
    if is_missing(name):
        pytest.skip(f"{NEEDS[name]} is not installed")
    ended = running.run(["-W", "ignore", str(PROGRAMS / f"{name}.py")], site_folder, ON)
    assert ended.status == 0, ended.err
    told = TOLD.get(name, "")
    assert len(ended.warnings) == bool(told)
    assert all(told in line for line in ended.warnings)
    assert ended.converted > 0
    expected, result = in_float32[name], ended.result
    assert result.keys() == expected.keys()
    assert result != expected  # else nothing was computed in bfloat16
    for key, value in expected.items():
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(result[key], value, rtol=RELATIVE, atol=ABSOLUTE, err_msg=key)
        else:
            assert result[key] == value, key


def test_determinism_and_numeric_checks_keep_their_promise(in_float32: dict[str, dict[str, Any]]) -> None:
    # The test above compares these with the run in mixed precision; here they are what they should be at all.
    assert in_float32["op_determinism"]["same"] is True
    assert in_float32["check_numerics"]["found"] == "NaN"


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_keras_own_float16_policy_keeps_its_types_and_its_one_loss_scale(precision: str, site_folder: Path) -> None:
    command = ["-W", "ignore", str(PROGRAMS / "keras_policy.py"), "mixed_float16"]
    alone = running.run(command, site_folder, {})
    both = running.run(command, site_folder, {running.SWITCH: "1", "AMP_TF_PRECISION": precision})
    assert (alone.status, both.status) == (0, 0), alone.err + both.err
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
