"""Which ops around products are measured, and on what."""

import itertools
import math

import tensorflow as tf

from amp_tf.oplists.cost_tables import FREE
from amp_tf.oplists.table import CLEAR, CPU, INFER, ROWS, Trait
from amp_tf.tools.calibrating import elements

SMALL = (8, 8, 8, 64)


def test_sizes_go_from_what_one_thread_computes_to_what_no_cache_holds():
    counts = [math.prod(shape) for shape in elements.SHAPES]
    assert all(before < after for before, after in itertools.pairwise(counts))
    assert counts[0] < 210_000 / 4
    assert counts[-1] > 8e6


def test_data_lies_between_0_and_1_so_that_every_op_takes_it():
    data = elements.data_of(SMALL)
    assert data.dtype == tf.float32
    assert data.shape == SMALL
    for name, (op, inputs) in elements.ops_on(data).items():
        for output in tf.nest.flatten(tf.function(op)(*inputs)):
            if output.dtype.is_floating:
                assert bool(tf.reduce_all(tf.math.is_finite(output))), name


def test_a_row_of_the_same_kernel_is_that_of_an_op_that_is_measured():
    assert set(elements.SAME_KERNEL.values()) <= elements.ops_on(elements.data_of(SMALL)).keys()


def test_ops_read_or_write_no_tensor_that_is_larger_than_the_shape_that_they_are_measured_for():
    data = elements.data_of(SMALL)
    for name, (op, inputs) in elements.ops_on(data).items():
        outputs = tf.nest.flatten(tf.function(op).get_concrete_function(*inputs).structured_outputs)
        largest = max(tensor.shape.num_elements() or 0 for tensor in (*inputs, *outputs))
        grows = name in {"MirrorPad", "Pad"}
        assert largest == math.prod(SMALL) or (grows and largest < 2 * math.prod(SMALL)), name


def test_every_op_of_the_lists_has_a_row_or_costs_nothing_or_is_named_here():
    """Those that are not measured: second gradients of poolings, and ops that are rare around products."""
    unmeasured = Trait(
        """MaxPoolGradGrad MaxPoolGradGradV2 TensorListConcatLists TensorListGather TensorListScatter
        TensorListScatterIntoExistingList TensorListScatterV2 TensorListSplit Where _FusedBatchNormEx"""
    )
    rows = elements.ops_on(elements.data_of(SMALL)).keys() | elements.SAME_KERNEL.keys()
    listed = {row.op for row in ROWS if row.table == CPU and row.op_list in (INFER, CLEAR)}
    assert listed - rows - FREE == unmeasured
