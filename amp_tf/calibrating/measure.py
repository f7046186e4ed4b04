"""Measures this machine's table of costs in a given time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from amp_tf.calibrating import elements, products
from amp_tf.calibrating.fitting import fit
from amp_tf.calibrating.timing import TYPES, least_seconds
from amp_tf.oplists.cost_tables import CostTable, Pair

SECONDS = 70.0
_RUNS = 4  # of an op that is no product, in one call
_NS = 1e9


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        table: the figures.
        times: of each product, what it took in float32 and in bfloat16, in ns.
    """

    table: CostTable
    times: Mapping[products.Product, Pair]


@dataclasses.dataclass(frozen=True)
class _Case:
    """Something to time, and where its times in seconds go."""

    name: str
    run: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    runs: int
    note: Callable[[Pair], None]


def measure(
    shipped: CostTable, source: str, seconds: float = SECONDS, progress: Callable[[int, int, str], None] | None = None
) -> Measured:
    """Times products, other ops and casts in float32 and bfloat16.

    Every case gets its share of the time that is left and runs at least three times in each type, so that on a slow
    machine it may take longer. TensorFlow's graph optimizers are off meanwhile.

    Args:
        shipped: the table whose figures count where the times do not tell.
        source: of the new table, for people.
        seconds: how long it may take.
        progress: called before each case with its number, their count and its name.
    """
    begin = time.monotonic()
    taken: dict[products.Product, Pair] = {}
    of_ops: dict[tuple[str, int], Pair] = {}
    cases = [*_product_cases(taken), *_element_cases(of_ops)]
    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        for number, case in enumerate(cases):
            if progress is not None:
                progress(number, len(cases), case.name)
            now = time.monotonic()
            until = now + max(0.0, begin + seconds - now) / (len(cases) - number)
            case.note(least_seconds(case.run, case.inputs(), case.runs, until))
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **options})
    return Measured(_table(shipped, source, taken, of_ops), taken)


def _product_cases(taken: dict[products.Product, Pair]) -> Iterator[_Case]:
    random = np.random.default_rng(0)
    for product in products.all_products():

        def inputs(product: products.Product = product) -> Sequence[Any]:
            return [tf.constant(random.standard_normal(shape, dtype=np.float32)) for shape in product.shapes]

        def note(pair: Pair, product: products.Product = product) -> None:
            taken[product] = (_NS * pair[0], _NS * pair[1])

        yield _Case(f"{product.op} {product.what}", product.run, inputs, product.runs, note)


def _element_cases(of_ops: dict[tuple[str, int], Pair]) -> Iterator[_Case]:
    for size in elements.SIZES:
        data = elements.data_of(size)
        count = float(np.prod(data.shape))
        casts = {f"Cast to {kind.name}": (lambda x, kind=kind: tf.cast(x, kind), 1) for kind in TYPES}
        for name, (op, tensors) in {**elements.ops_on(data), **casts}.items():

            def note(pair: Pair, key: tuple[str, int] = (name, size), count: float = count) -> None:
                of_ops[key] = (_NS * pair[0] / count, _NS * pair[1] / count)

            def inputs(data: Any = data, tensors: int = tensors) -> Sequence[Any]:
                return [data] * tensors

            yield _Case(name, op, inputs, _RUNS, note)


def _table(
    shipped: CostTable, source: str, taken: Mapping[products.Product, Pair], of_ops: Mapping[tuple[str, int], Pair]
) -> CostTable:
    by_op: dict[str, list[products.Product]] = {}
    for product in taken:
        by_op.setdefault(product.op, []).append(product)
    fitted = {}
    for op, cases in by_op.items():
        work = [(case.operations, case.elements) for case in cases]
        known = shipped.products.get(op) or shipped.products[op.partition(",")[0]]
        pair = (fit(work, [taken[case][index] for case in cases], known[index]) for index in (0, 1))
        fitted[op] = (next(pair), next(pair))
    cached, in_memory = elements.SIZES
    names = {name for name, _ in of_ops if not name.startswith("Cast")}
    rows = {name: (of_ops[name, cached], of_ops[name, in_memory]) for name in names}
    rows.update({name: rows[kernel] for name, kernel in elements.SAME_KERNEL.items()})
    # An op that is not known moves its tensors once, as a Mul does in float32; in 16 bit these are half as large.
    (slow, _), (slow_in_memory, _) = rows["Mul"]
    down, up = "Cast to bfloat16", "Cast to float32"
    return CostTable(
        source=source,
        elements=rows,
        other=((slow, slow), (slow_in_memory, slow_in_memory / 2)),
        products=fitted,
        to_f16=(of_ops[down, cached][0], of_ops[down, in_memory][0]),
        to_float32=(of_ops[up, cached][1], of_ops[up, in_memory][1]),
    )
