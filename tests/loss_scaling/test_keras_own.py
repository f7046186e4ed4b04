"""K1 to K12: what Keras' own wrapper does, the left column of the table in docs/loss-scaling.md.

What ours does instead the tests with these names say.
"""

import pytest

from tests.loss_scaling.test_distribution import finish, start

MEASURED_KERAS = "3.15"
APPLIED = "applied: weights not finite"
ROWS = {
    "k01": APPLIED,
    "k02": f"scale falls to 0; a finite step is {APPLIED}",
    "k03": "scale rises to inf",
    "k04": f"{APPLIED}; {APPLIED}",
    "k05": "moves by 1.53e-05 of 0.5",
    "k06": "LossScaleOptimizer",
    "k07": "RuntimeError; RuntimeError",
    "k08": "InvalidArgumentError; InvalidArgumentError",  # ours does the same
    "k09": "weights file: 0 of 1 step; checkpoint: InvalidArgumentError",
    "k10": "get_weights: False; apply_gradients returns 0 after 1 step",
    "k11": "inf",
    "k12": "fit ends as if all were well",
}


def test_keras_own_wrapper_does_what_the_table_says():
    found = finish(start("keras_own.py"))
    version = found.pop("keras")
    if not version.startswith(MEASURED_KERAS):
        pytest.skip(f"the table is about Keras {MEASURED_KERAS}, this is {version}")
    assert found == ROWS
