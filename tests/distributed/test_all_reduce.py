"""``AMP_TF_ALLREDUCE`` in one process with two replicas; test_workers.py does it with real
workers.
"""

import functools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from amp_tf.config import AmpConfig
from amp_tf.hooks import all_reduce, state
from tests.hooks import installing, running

PROGRAM = Path(__file__).resolve().parent / "programs" / "mirrored_sums.py"
# Two roundings of a term and one of the sum, each of half a unit in the last of 8 or 11 significant
# bits.
BOUNDS = {"float32": 1e-6, "bfloat16": 2.0**-7, "float16": 2.0**-10}
# The tests look at these parts alone of sums in another type than the products'.
PARTS = {
    ("bfloat16", "float16"): ("tiny", "huge"),
    ("float16", "float32"): ("eager", "sum", "fit"),
}


@pytest.fixture(scope="module")
def run(site_folder):
    @functools.cache
    def run_once(precision, allreduce):
        parts = PARTS.get((precision, allreduce), ())
        ended = running.run([str(PROGRAM), precision, allreduce, *parts], site_folder, {})
        return ended.result, ended.err

    return run_once


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_matrices_are_summed_in_16_bit_and_the_rest_in_float32(precision, run):
    found, err = run(precision, precision)
    # Each of two replicas reduces the matrix in 16 bit, row and scalar together in float32, and
    # with float16 the bound in float32.
    assert found["sum"]["types"] == {precision: 2, "float32": 4 if precision == "float16" else 2}
    bound = 2 * BOUNDS[precision]  # the product itself is rounded to 16 bit as well
    for case in ("sum", "mean", "tiny", "huge"):
        if case == "tiny" and precision == "float16":
            continue  # 1e-12 is 0 in a float16 product; the test below has it without one
        assert 0 < found[case]["error"] <= bound, case
        assert found[case]["same"], case
    assert (found["sum"]["row"], found["sum"]["scalar"]) == (3.0, 3.0)
    assert (found["mean"]["row"], found["mean"]["scalar"]) == (1.5, 1.5)
    for case in ("nan", "inf"):
        assert not np.isfinite(found[case]["error"])
        assert found[case]["same"], case
    assert 0 < found["eager"] <= bound
    assert 0 < found["cross_replica"] <= bound
    assert f"gradients summed over replicas in {precision} (" in err


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_what_is_computed_from_gradients_of_variables_is_summed_in_16_bit_and_nothing_else(
    precision, run
):
    found = run(precision, precision)[0]["others"]
    rounded = {name for name, total in found["gradients"].items() if total == 4096.0}
    assert rounded == {*found["gradients"]}
    exact = {name for name, total in found["no gradients"].items() if total == 4098.0}
    assert exact == {*found["no gradients"]}


@pytest.mark.parametrize("case", ["tiny", "huge"])
def test_float16_carries_what_lies_outside_its_range(case, run):
    found, _ = run("bfloat16", "float16")
    assert found[case]["error"] <= 2 * BOUNDS["bfloat16"]  # the product's
    assert found[case]["same"]


def test_without_the_setting_nothing_is_touched(run):
    found, err = run("float16", "float32")
    assert set(found["sum"]["types"]) == {"float32"}
    assert found["eager"] <= BOUNDS["float32"]
    assert "summed over replicas" not in err
    assert "summed over replicas" in run("float16", "float16")[1]


def test_a_spoilt_batch_is_skipped_on_all_replicas_and_training_goes_on(run):
    found = run("float16", "float16")[0]["fit"]
    expected = run("float16", "float32")[0]["fit"]
    assert found["skipped"] == expected["skipped"] == 1
    assert found["weights"] != expected["weights"]  # else the gradients were summed in float32
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-3)
    # Sums of a matrix' magnitudes, after nine steps with gradients of 11 significant bits.
    np.testing.assert_allclose(found["weights"], expected["weights"], rtol=1e-2)


@pytest.mark.parametrize(
    "bound", [0.0, 1e-45, 1.2e-38, 1e-12, 1.0, 65504.0, 1e30, 3.4e38, np.inf, np.nan]
)
def test_scales_are_exact_and_bring_the_bound_below_2_to_the_15(bound):
    before, after = (float(part[0]) for part in all_reduce.scales(tf.constant([bound])))
    assert before * after == 1.0
    if np.isfinite(bound):
        assert np.frexp(before)[0] == 0.5  # a power of two
        assert 2.0**14 * (bound >= 2.0**-111) <= bound * before < 2.0**15


@pytest.mark.parametrize(
    ("value", "is_carried"),
    [
        (tf.zeros((32, 32)), True),
        (tf.zeros((3, 3, 16, 16)), True),
        (tf.zeros((31, 33)), False),  # 1023 elements
        (tf.zeros((1, 1, 1, 4096)), False),  # biases, statistics of a batch
        (tf.zeros((32, 32), tf.float64), False),
        (tf.IndexedSlices(tf.zeros((32, 32)), tf.range(32), tf.constant([100, 32])), False),
        (None, False),
    ],
)
def test_large_float32_matrices_are_carried(value, is_carried):
    assert all_reduce.is_large_matrix(value) is is_carried


@pytest.fixture
def installed():
    state.current().warned.clear()
    with installing.installed(all_reduce, config=AmpConfig(allreduce="bfloat16")):
        yield
    state.current().warned.clear()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("narrow", "wide", "part"),
    [
        (0, 0, "AMP_TF_ALLREDUCE: no gradients were summed over replicas in bfloat16"),
        (99_999, 1, "gradients summed over replicas in bfloat16 (>99.9 % of their elements)"),
        (512, 512, "gradients summed over replicas in bfloat16 (50 % of their elements)"),
    ],
)
def test_the_summary_line_says_what_was_summed_in_16_bit(narrow, wide, part, monkeypatch):
    sums = all_reduce._Sums(narrow=narrow, wide=wide)
    monkeypatch.setitem(state.current().records, all_reduce._Sums, sums)
    assert all_reduce._summary_part() == part


@pytest.mark.usefixtures("installed")
def test_a_strategy_without_all_reduce_is_told_once_and_stays_in_float32(caplog):
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0"])
    weight = tf.Variable(tf.random.stateless_uniform((64, 64), (1, 2)))
    with tf.GradientTape() as tape:
        loss = tf.nn.l2_loss(weight)
    value = tape.gradient(loss, weight)
    for _ in range(2):
        result = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", value))
        np.testing.assert_array_equal(result, value)
    told = [
        record.getMessage()
        for record in caplog.records
        if "AMP_TF_ALLREDUCE" in record.getMessage()
    ]
    assert told == [
        "amp_tf: AMP_TF_ALLREDUCE: CentralStorageStrategy does not all-reduce gradients, so they "
        "stay in float32. "
        "Unset AMP_TF_ALLREDUCE, or use MirroredStrategy or MultiWorkerMirroredStrategy."
    ]


@pytest.mark.usefixtures("installed")
def test_an_all_reduce_without_bfloat16_is_told(caplog):
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0"], cross_device_ops=tf.distribute.NcclAllReduce()
    )
    assert (
        all_reduce._narrow_type(strategy) is None
    )  # one replica: nothing is sent, nothing to tell
    assert not caplog.records
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(strategy), "num_replicas_in_sync", 2)
        assert all_reduce._narrow_type(strategy) is None
    assert "Set AMP_TF_ALLREDUCE=float16" in caplog.text


def test_arrays_among_tensors_are_no_gradients_and_counted_as_none():
    assert all_reduce._count([tf.ones((3, 4)), np.float32(1), tf.ones(5)]) == 17
