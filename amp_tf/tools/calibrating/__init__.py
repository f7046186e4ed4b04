"""Measures this machine's table of costs within a given time."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from amp_tf.oplists.cost_tables import (
    COSTS_AS,
    DISPATCH,
    FEW_OPERATIONS,
    CostTable,
    Pair,
    ProductCost,
)
from amp_tf.tools.calibrating import elements, products
from amp_tf.tools.calibrating.elements import Op, Tensors
from amp_tf.tools.calibrating.products import Shape
from amp_tf.tools.progress import Progress

Times = Sequence[float]
_REPEATS = 3  # the least calls of a case
_MOST_RUNS = 16  # in one call, because tracing takes time too
_ELEMENTS = 16_000_000  # of all runs in one call, so that the tensors exceed the caches
_LEAST_NS = 0.01  # for each element; a time must be positive
_NS = 1e9
#: the weight of a figure's relative distance from the shipped one; that of a product's error is 1
PRIOR_WEIGHT = 0.1
_LEAST_OPERATION_NS = 1e-9  # a rate must be finite
_LEAST_ELEMENT_NS = 1e-3  # the expected cost of an element if the shipped table has none
# if the shipped table has no cost of computing alone: beyond so many costs of an operation it is
# doubted
_USUAL_SHARE = 0.5
# and no cost of a result: beyond so many costs of an element it is doubted
_USUAL_RESULT = 10.0
TYPES = (tf.float32, tf.bfloat16)
# Begin the names of cases: casts, and calls that only take tensors out of stacks.
_CAST = "Cast to "
_NOTHING = "Nothing of "


@dataclasses.dataclass(frozen=True)
class _Case:
    """Describes a case to time.

    Its key is the name of an op with a product or a shape. The time of one run is divided by
    ``per``.

    For products the least time counts, which is the steadiest: in both types they are shared among
    threads. For other ops the median counts: many are shared only in float32, and their least time
    needs the other thread to be awake, which it seldom is in a step.
    """

    key: tuple[str, Any]
    run: Op
    inputs: Callable[[], Tensors]
    runs: int
    per: float = 1.0
    typical: Callable[[Times], float] = statistics.median


def measure(shipped: CostTable, source: str, seconds: float, progress: Progress) -> CostTable:
    """Times products, other ops and casts in float32 and bfloat16, and makes the table of them.

    Every case gets its share of the time that is left and runs at least three times in each type,
    so that on a slow machine it may take longer. TensorFlow's graph optimizers are off meanwhile.
    If the times do not decide, the figures of the ``shipped`` table count. ``progress`` is called
    before each case.
    """
    begin = time.monotonic()
    taken: dict[Any, Pair] = {}
    cases = list(_cases())
    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        for number, case in enumerate(cases):
            progress(f"{100 * number // len(cases):3} %  {case.key[0]}")
            now = time.monotonic()
            until = now + max(0.0, begin + seconds - now) / (len(cases) - number)
            float32, f16 = take_times(case.run, case.inputs(), case.runs, until)
            unit = _NS / case.per
            taken[case.key] = (unit * case.typical(float32), unit * case.typical(f16))
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **options})
    return _table(shipped, source, taken)


def _cases() -> Iterator[_Case]:
    """Yields the cases: products, then at each size the other ops, empty calls and casts."""
    yield from map(_product_case, products.all_products())
    for shape in elements.SHAPES:
        data = elements.data_of(shape)
        all_stacks = {1}
        for name, (op, given) in elements.ops_on(data).items():
            stacks = len(given) - 1
            all_stacks.add(stacks)
            yield _element_case(name, op, given, stacks, shape)
        for stacks in sorted(all_stacks):
            yield _element_case(f"{_NOTHING}{stacks}", _first, [data], stacks, shape)
        for kind in TYPES:
            cast = functools.partial(tf.cast, dtype=kind)
            yield _element_case(f"{_CAST}{kind.name}", cast, [data], 1, shape)


def _first(*inputs: Any) -> Any:
    return inputs[0]


def _product_case(product: products.Product) -> _Case:
    """Makes the case of a product of normal random numbers."""

    def inputs() -> Tensors:
        random = np.random.default_rng(0)
        arrays = [random.standard_normal(shape, np.float32) for shape in product.shapes]
        return list(map(tf.constant, arrays))

    run = run_many(product.run, product.runs)
    return _Case((product.op, product), run, inputs, product.runs, typical=min)


def _element_case(name: str, op: Op, inputs: Tensors, stacks: int, shape: Shape) -> _Case:
    """Makes the case of an op on tensors of one shape.

    The last ``stacks`` inputs are other tensors in each run.

    These were not read just before: large ones are in no cache, and small ones, as in a small
    model, in the last-level cache. Casts read such tensors, too, because they mostly read weights.
    """
    size = float(math.prod(shape))
    runs = min(_MOST_RUNS, max(2, round(_ELEMENTS / size)))

    def taken() -> Tensors:
        same = len(inputs) - stacks
        return [*inputs[:same], *(tf.repeat(tensor[None], runs, 0) for tensor in inputs[same:])]

    return _Case((name, shape), run_many(op, runs, stacks), taken, runs, size)


def _table(shipped: CostTable, source: str, taken: Mapping[Any, Pair]) -> CostTable:
    """Makes the table of the times of all cases, by their keys."""
    by_op: dict[str, dict[products.Product, Pair]] = {}
    for (op, what), pair in taken.items():
        if isinstance(what, products.Product):
            by_op.setdefault(op, {})[what] = pair
    fitted = {}
    for op, cases in by_op.items():
        work = [(case.operations, case.elements, case.results) for case in cases]
        name = op
        if name not in shipped.products:
            name = op.partition(",")[0]
        if name not in shipped.products:
            name = COSTS_AS[name]
        in_float32, in_f16 = shipped.products[name]
        of_float32, of_f16 = zip(*cases.values(), strict=True)
        fitted[op] = fit(work, of_float32, in_float32), fit(work, of_f16, in_f16)
    rows = _rows(taken)
    # An unknown op is taken to move its tensors once, as a Mul does in float32; in 16 bit they are
    # half as large.
    *cached, (in_memory, _) = rows["Mul"]
    counts = [float(math.prod(shape)) for shape in elements.SHAPES]

    def casts(kind: Any, index: int) -> tuple[float, ...]:
        """Returns the time of a cast for each element.

        Its start-up and the overhead of calling the function are subtracted.
        """
        times = []
        for shape, count in zip(elements.SHAPES, counts, strict=True):
            cast = taken[f"{_CAST}{kind.name}", shape][index]
            none = taken[f"{_NOTHING}1", shape][index]
            times.append(max(cast - none - DISPATCH / count, _LEAST_NS))
        return tuple(times)

    return CostTable(
        source=source,
        elements=rows,
        other=(*((time, time) for time, _ in cached), (in_memory, in_memory / 2)),
        products=fitted,
        to_f16=casts(tf.bfloat16, 0),
        to_float32=casts(tf.float32, 1),
        sizes=tuple(counts),
    )


def _rows(taken: Mapping[Any, Pair]) -> dict[str, tuple[Pair, ...]]:
    """Returns the time of ops for each element at each size.

    The overhead of calls and of stacks of inputs is subtracted.
    """
    ops = elements.ops_on(elements.data_of(elements.SHAPES[0]))
    stacks = {name: len(inputs) - 1 for name, (_, inputs) in ops.items()}

    def own(name: str, shape: Shape) -> Pair:
        calls = taken[f"{_NOTHING}{stacks[name]}", shape]
        forward = elements.MEASURED_WITH.get(name)
        before = (0.0, 0.0)
        if forward is not None:
            before = own(forward, shape)
        times = np.subtract(taken[name, shape], calls) - before
        in_float32, in_f16 = np.maximum(times, _LEAST_NS).tolist()
        return in_float32, in_f16

    rows = {}
    for name in stacks:
        rows[name] = tuple(own(name, shape) for shape in elements.SHAPES)
    for name, kernel in elements.SAME_KERNEL.items():
        rows[name] = rows[kernel]
    return rows


def run_many(op: Op, runs: int, stacks: int = 0) -> Op:
    """Runs an op on tensors many times in a row, each writing to new memory.

    So it is in training, where activations are kept for the gradients; in a chain TensorFlow would
    write in place. The last ``stacks`` inputs are stacks of ``runs`` tensors, and each run reads
    another one of each. Taking a tensor out of a stack copies nothing.
    """

    def run(*inputs: Any) -> Any:
        same = inputs[: len(inputs) - stacks]
        results: list[Any] = []
        for _, *others in zip(range(runs), *map(tf.unstack, inputs[len(same) :]), strict=True):
            with tf.control_dependencies(results[-1:]):
                results.append(op(*same, *others))
        return results[-1]

    return run


def take_times(run: Op, inputs: Tensors, runs: int, until: float) -> tuple[Times, Times]:
    """Times runs of an op in float32 and in bfloat16.

    Returns seconds, a figure for each call of ``run``.

    ``run`` runs the op ``runs`` times. It is traced once for each type, and called at least
    three times and until the time ``until`` of ``time.monotonic()``.
    """
    calls = []
    for dtype in TYPES:
        cast = [tf.cast(tensor, dtype) for tensor in inputs]
        concrete = tf.function(run, autograph=False).get_concrete_function(*cast)
        concrete(*cast)
        calls.append((concrete, cast))
    taken: tuple[list[float], list[float]] = ([], [])
    while len(taken[0]) < _REPEATS or time.monotonic() < until:
        for times, (concrete, cast) in zip(taken, calls, strict=True):
            begin = time.perf_counter()
            concrete(*cast)
            times.append((time.perf_counter() - begin) / runs)
    return taken


def fit(
    work: Sequence[tuple[float, float, float]], times: Times, shipped: ProductCost
) -> ProductCost:
    """Fits the cost of products in one type.

    The figures are nonnegative, and have the least relative error of the ``times`` (ns). ``work``
    has the operations, the elements and the result's elements of each product.

    Five figures can fit some twenty noisy times in many ways. If the times do not decide, the
    figures of the shipped table count, all scaled by one factor.
    """
    rows = []
    expected = []
    for operations, moved, results in work:
        rows.append((operations, moved, 1.0, min(operations, FEW_OPERATIONS), results))
        expected.append(shipped.of(operations, moved, results))
    scale = float(np.median(np.divide(times, expected)))
    per_operation = 1 / shipped.rate
    per_element = max(shipped.ns, _LEAST_ELEMENT_NS)
    usual = [
        per_operation,
        per_element,
        max(shipped.start, 1.0),
        shipped.alone or _USUAL_SHARE * per_operation,
        shipped.written or _USUAL_RESULT * per_element,
    ]
    is_known = [1, 1, 1, bool(shipped.alone), bool(shipped.written)]
    prior = scale * np.array(usual)
    relative = np.divide(rows, np.array(times)[:, None])
    matrix = np.concatenate([relative, PRIOR_WEIGHT * np.diag(1 / prior)])
    wanted = np.concatenate([np.ones(len(rows)), PRIOR_WEIGHT * np.array(is_known)])
    per_operation, *others = _least_squares(matrix, wanted)
    return ProductCost(1 / max(per_operation, _LEAST_OPERATION_NS), *others)


def _least_squares(matrix: np.ndarray, wanted: np.ndarray) -> Times:
    """Solves least squares without negative numbers.

    All subsets of columns are tried, and the best one is returned.
    """
    count = matrix.shape[1]
    best = np.zeros(count)
    least = np.inf
    for is_used in itertools.product((False, True), repeat=count):
        columns = matrix * is_used
        found, *_ = np.linalg.lstsq(columns, wanted, rcond=None)
        found = found * is_used  # others are zero but for rounding
        error = np.square(columns @ found - wanted).sum()
        if found.min() >= 0 and error < least:
            least = error
            best = found
    return list(best.tolist())
