"""K1 to K12 side by side: what Keras' own wrapper does, measured on the installed Keras, and what ours does instead.

These are the lines of the table in docs/loss-scaling.md. Each case has tests of its own for ours, by its name.

They skip where Keras is not 3.15.
"""

import pytest

from tests.loss_scaling.test_distribution import finish, start

MEASURED_KERAS = "3.15"
# case, what Keras 3.15 does, what we do; in the words of programs/keras_own.py
ROWS = (
    ("K1", "applied: weights not finite", "skipped by all"),
    (
        "K2",
        "scale falls to 0; weights NaN after a finite step",
        "scale falls to 5.96046e-08; weights finite after a finite step",
    ),
    ("K3", "scale rises to inf", "scale rises to 1.701e+38"),
    (
        "K4",
        "unscaled overflow applied: weights not finite; norm overflow applied: weights not finite",
        "unscaled overflow skipped; norm overflow skipped",
    ),
    ("K5", "wrapped: True; moves by 1.53e-05 of 0.5", "wrapped: True; moves by 0.5 of 0.5"),
    ("K6", "accepted", "refused"),
    ("K7", "accumulation RuntimeError; averages RuntimeError", "accumulation runs; averages runs"),
    ("K8", *["InvalidArgumentError; bare optimizer InvalidArgumentError"] * 2),
    (
        "K9",
        "weights file: state dropped; checkpoint: state InvalidArgumentError",
        "weights file: state kept; checkpoint: state kept",
    ),
    (
        "K10",
        "get_weights: False; apply_gradients returns 0 after 1 step",
        "get_weights: True; apply_gradients returns 1 after 1 step",
    ),
    ("K11", "inf", "98304"),
    (
        "K12",
        "fit ends as if all were well; counters: False; logged: False",
        "fit ends with an error; counters: True; logged: True",
    ),
)


@pytest.fixture(scope="module")
def measured():
    return finish(start("keras_own.py"))


@pytest.mark.parametrize(("case", "ours"), [(case, ours) for case, _, ours in ROWS])
def test_our_wrapper_does_what_the_table_says(measured, case, ours):
    assert measured["outcomes"][case]["amp_tf"] == ours


@pytest.mark.parametrize(("case", "theirs"), [(case, theirs) for case, theirs, _ in ROWS])
def test_keras_own_wrapper_does_what_the_table_says(measured, case, theirs):
    if not measured["keras"].startswith(MEASURED_KERAS):
        pytest.skip(f"the table is about Keras {MEASURED_KERAS}, this is {measured['keras']}")
    assert measured["outcomes"][case]["keras"] == theirs
