"""Every way in, with the variable alone: an unchanged program in a process of its own, beside the same in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hooks import running

# What a program returns in bfloat16 against float32: bfloat16 has 8 significant bits, and the programs train for 10 to
# 24 steps on values of about 1.
RELATIVE, ABSOLUTE = 0.05, 0.03

WAYS = (
    "mirrored",  # first in the float32 process: it configures the devices
    "keras_fit",
    "tf_keras_fit",
    "custom_loop",
    "session",
    "saved_model",
    "threads",
)


@pytest.fixture(scope="module")
def in_float32(site_folder: Path) -> dict[str, dict[str, Any]]:
    """The results of all programs without the variable, from one process."""
    paths = [str(running.PROGRAMS / f"{way}.py") for way in WAYS]
    code = f"import runpy\nfor path in {paths!r}: runpy.run_path(path, run_name='__main__')\n"
    code += "import sys; print([name for name in sys.modules if name.startswith('amp_tf')])"
    ended = running.run(["-c", code], site_folder, {"PYTHONWARNINGS": "ignore"})
    *lines, modules = ended.out.strip().splitlines()
    assert modules == "[]"
    assert "amp_tf" not in ended.err
    return {way: json.loads(line) for way, line in zip(WAYS, lines, strict=True)}


@pytest.mark.quick
@pytest.mark.parametrize("way", WAYS)
def test_program_is_converted_and_agrees_with_float32(
    way: str, in_float32: dict[str, dict[str, Any]], site_folder: Path
) -> None:
    ended = running.run([str(running.PROGRAMS / f"{way}.py")], site_folder, running.switched_on())
    assert ended.warnings == []
    assert ended.converted > 0
    assert ended.summary[4] == "bfloat16"
    expected, result = in_float32[way], ended.result
    assert result.keys() == expected.keys()
    assert result != expected  # else nothing was computed in bfloat16
    for key, value in expected.items():
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(result[key], value, rtol=RELATIVE, atol=ABSOLUTE, err_msg=key)
        else:
            assert result[key] == value, key
    if way == "keras_fit":
        assert result["saved_16_bit"] == 0
        assert result["checkpoint_types"] == ["float32", "int64", "string"]
    if way == "session":
        assert result["fetched_types"] == ["float32"]


#: Programs that change what the whole process does, with what they are told beside the line at exit. They are small, so
#: the precision is said: ``auto`` would leave in float32 what is not faster.
SETTINGS = {
    "tensorboard_profile.py": "",
    "op_determinism.py": "",
    "check_numerics.py": "",
    "keras_policy.py": "Keras policy 'mixed_bfloat16': the program asks for 16 bit by itself",
}
QUIET = {"PYTHONWARNINGS": "ignore"}


@pytest.mark.parametrize("program", SETTINGS)
def test_programs_with_settings_of_tensorflow_or_keras_end_as_in_float32(program: str, site_folder: Path) -> None:
    if program == "tensorboard_profile.py":
        pytest.importorskip("tensorboard")
    command = [str(running.PROGRAMS / program)]
    expected = running.run(command, site_folder, QUIET).result
    ended = running.run(command, site_folder, QUIET | {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"})
    assert len(ended.warnings) == bool(SETTINGS[program])
    assert all(SETTINGS[program] in line for line in ended.warnings)
    assert ended.converted > 0
    result = ended.result
    np.testing.assert_allclose(result.pop("loss"), expected["loss"], rtol=RELATIVE, atol=ABSOLUTE)
    assert result == {name: value for name, value in expected.items() if name != "loss"}
    assert result.get("same", True) is True  # op determinism
    assert result.get("found", "NaN") == "NaN"  # numeric checks


def test_keras_own_float16_policy_keeps_its_types_and_its_one_loss_scale(site_folder: Path) -> None:
    command = [str(running.PROGRAMS / "keras_policy.py"), "mixed_float16"]
    alone = running.run(command, site_folder, QUIET)
    both = running.run(command, site_folder, QUIET | {running.SWITCH: "1", "AMP_TF_PRECISION": "float16"})
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
