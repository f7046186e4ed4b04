"""How the hooks speak: as absl would print it, and without taking the program's own logging from
it.
"""

import logging

import pytest

from amp_tf.config import AmpConfig
from amp_tf.hooks import notices, state
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import resolve_target
from tests.hooks import running
from tests.oplists.test_op_names import register_op
from tests.pretending import WHERE_PRODUCTS_PAY

BAD_VALUE = {running.SWITCH: "maybe"}
LINE = (
    "WARNING:absl:amp_tf: stays off, the program runs in float32: TF_ENABLE_AUTO_MIXED_PRECISION: "
    "'maybe' is not a "
    "valid value. Valid values: 1, true, 0, false."
)
AT_EXIT = (
    "amp_tf: nothing was converted: amp_tf is off: TF_ENABLE_AUTO_MIXED_PRECISION is not valid, "
    "as a warning said"
)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_program_that_sets_up_its_logging_gets_the_lines_there_from_then_on(
    is_before, site_folder, tmp_path
):
    file = tmp_path / "program.log"
    sets_up = f"logging.basicConfig(filename={str(file)!r}, format='%(message)s')"
    steps = [sets_up, "import tensorflow"] if is_before else ["import tensorflow", sets_up]
    code = ["import logging", *steps, "logging.warning('of the program')"]
    ended = running.run(["-c", "\n".join(code)], site_folder, BAD_VALUE)
    told = [line for line in ended.err.splitlines() if "amp_tf" in line]
    written = file.read_text().splitlines()
    if is_before:
        assert written == [LINE.removeprefix("WARNING:absl:"), "of the program", AT_EXIT]
        assert told == []
    else:
        assert written == ["of the program", AT_EXIT]
        assert told == [LINE]


def test_a_warning_is_told_once(caplog):
    notices.warn_once("key", "it broke", where="here", fix="Mend it")
    notices.warn_once("key", "it broke", where="there", fix="Mend it")
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "amp_tf: here: it broke. Mend it.")
    ]


PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"


def test_program_with_misspelt_op_names_is_converted_and_told_each_once(site_folder):
    names = {f"{PREFIX}ALLOWLIST_ADD": "MatMull", f"{PREFIX}CLEARLIST_REMOVE": "Relu,rellu"}
    ended = running.run(
        [str(running.PROGRAMS / "custom_loop.py")],
        site_folder,
        {**running.switched_on(), "AMP_TF_PRECISION": "bfloat16", **names},
    )
    assert ended.converted > 0
    assert len(ended.warnings) == 2
    added, removed = sorted(ended.warnings)
    assert f"AmpConfig.allow_add ({PREFIX}ALLOWLIST_ADD): TensorFlow knows no op 'MatMull'" in added
    assert "so the name is left out. Did you mean 'MatMul'?" in added
    assert (
        f"AmpConfig.clear_remove ({PREFIX}CLEARLIST_REMOVE): TensorFlow knows no op 'rellu'"
        in removed
    )
    assert "Did you mean 'Relu'" in removed


def test_op_that_the_program_loads_later_counts_from_then_on(caplog):
    config = AmpConfig(precision="bfloat16", infer_add=("AmpTfOwnOp", "Sin"))
    with caplog.at_level(logging.WARNING, logger="absl"):
        for _ in range(2):
            assert notices.known_only(config).infer_add == ("Sin",)
        register_op("AmpTfOwnOp")
        assert notices.known_only(config) is config
    (message,) = [record.getMessage() for record in caplog.records]
    assert "counts from the first graph after it was loaded" in message


PROGRAM = """
import tensorflow as tf

def step(x):
    return tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(x, x)), x))

for size in (16, 32):
    for is_compiled in (True, False):
        tf.function(step, jit_compile=is_compiled)(tf.ones((size, size)))
"""
WARNING = "on this CPU float32 computes {0}'s matmuls and convolutions, so {0} is not faster here"
HERE = resolve_target(AmpConfig(precision="bfloat16"), Hardware.detect_cpu()).target


@pytest.mark.parametrize(
    ("precision", "warned"), [("float16", 1), ("bfloat16", bool(HERE.rounded)), ("auto", 0)]
)
def test_a_program_whose_products_float32_computes_is_told_once(precision, warned, site_folder):
    ended = running.run(
        ["-c", PROGRAM], site_folder, {running.SWITCH: "1", "AMP_TF_PRECISION": precision}
    )
    told = [line for line in ended.err.splitlines() if WARNING.format(precision) in line]
    assert len(told) == warned, ended.err
    assert all("Set AMP_TF_PRECISION=" in line for line in told)


@pytest.mark.parametrize(
    ("machine", "advice"),
    [
        (
            WHERE_PRODUCTS_PAY,
            "Set AMP_TF_PRECISION=bfloat16, in which this CPU is fast, or auto, which",
        ),
        (Hardware(), "Set AMP_TF_PRECISION=auto, which leaves this CPU in float32."),
    ],
)
def test_the_advice_names_what_this_cpu_is_good_at(machine, advice, monkeypatch, caplog):
    monkeypatch.setattr(state, "hardware", lambda: machine)
    notices.warn_if_slow(AmpConfig(precision="float16", target="cpu"))
    assert [advice in record.getMessage() for record in caplog.records] == [True]
