"""Every way in, with the variable alone: an unchanged program in a process of its own, beside the
same in float32.
"""

import json

import numpy as np
import pytest

from tests.hooks import running

# Limits of bfloat16 against float32: bfloat16 has 8 significant bits, and the programs train for 10
# to 24 steps on values of about 1.
RELATIVE = 0.05
ABSOLUTE = 0.03

WAYS = (
    "mirrored",  # first in the float32 process: it configures the devices
    "keras_fit",
    "keras_fit tf_keras",
    "custom_loop",
    "session",
    "saved_model",
    "threads",
)


def command(way):
    program, *arguments = way.split()
    return [str(running.PROGRAMS / f"{program}.py"), *arguments]


@pytest.fixture(scope="module")
def in_float32(site_folder):
    """The results of all programs without the variable, from one process."""
    code = (
        f"import runpy, sys\nsys.path.append({str(running.ROOT)!r})\n"
        "from tests import autograph\nwith autograph.leaving_tf_keras_alone():\n"
        f"    for sys.argv in {[*map(command, WAYS)]}: runpy.run_path(sys.argv[0])\n"
    )
    code += "print([name for name in sys.modules if name.startswith('amp_tf')])"
    ended = running.run(["-c", code], site_folder, {"PYTHONWARNINGS": "ignore"})
    *lines, modules = [line for line in ended.out.splitlines() if line[:1] in ("{", "[")]
    assert modules == "[]"
    return {way: json.loads(line) for way, line in zip(WAYS, lines, strict=True)}


@pytest.mark.quick
@pytest.mark.parametrize("way", WAYS)
def test_program_is_converted_and_agrees_with_float32(way, in_float32, site_folder):
    ended = running.run(command(way), site_folder, running.switched_on())
    assert ended.warnings == []
    assert ended.converted > 0
    assert ended.summary[4] == "bfloat16"
    expected = in_float32[way]
    result = ended.result
    assert result.keys() == expected.keys()
    assert result != expected  # else nothing was computed in bfloat16
    for key, value in expected.items():
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(
                result[key], value, rtol=RELATIVE, atol=ABSOLUTE, err_msg=key
            )
        else:
            assert result[key] == value, key
    if way.startswith("keras_fit"):
        assert result["saved_16_bit"] == 0
        types = set(result["checkpoint_types"])
        assert {"float32", "int64"} <= types <= {"float32", "int64", "string"}
    if way == "session":
        assert result["fetched_types"] == ["float32"]


UNDER_POLICY = (
    "Keras policy 'mixed_float16': the program asks for 16 bit by itself: its "
    "layers keep the types that the policy gives them and amp_tf converts what they leave in "
    "float32. Take one of the two: remove the policy, or unset TF_ENABLE_AUTO_MIXED_PRECISION."
)


#: Settings of the whole process, with a precision, what is told beside the line at exit, and facts.
#: The programs are small, so the precision is said: ``auto`` would leave in float32 what is not
#: faster.
@pytest.mark.parametrize(
    ("setting", "precision", "told", "facts"),
    [
        ("determinism", "bfloat16", [], {"same": True}),
        (
            "mixed_float16",
            "float16",
            [UNDER_POLICY],
            {
                "optimizers": ["keras.LossScaleOptimizer", "keras.SGD"],
                "computes_in": "float16",
            },
        ),
    ],
)
def test_programs_with_settings_of_tensorflow_or_keras_end_as_in_float32(
    setting, precision, told, facts, site_folder
):
    quiet = {"PYTHONWARNINGS": "ignore"}
    program = [str(running.PROGRAMS / "keras_settings.py"), setting]
    expected = running.run(program, site_folder, quiet).result
    on = {running.SWITCH: "1", "AMP_TF_PRECISION": precision}
    ended = running.run(program, site_folder, quiet | on)
    assert [line.partition("amp_tf: ")[2] for line in ended.warnings] == told
    assert ended.converted > 0
    result = ended.result
    loss = result.pop("loss")
    np.testing.assert_allclose(loss, expected.pop("loss"), rtol=RELATIVE, atol=ABSOLUTE)
    assert result == expected
    assert facts.items() <= result.items()
