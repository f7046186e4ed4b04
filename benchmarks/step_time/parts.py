"""Parts of the rewrite that can be left out, one at a time, to see what each is worth.

Parts that are data are emptied; the others are replaced by a form that does without.
:mod:`benchmarks.step_time.ablation` measures them.

So the package needs no switch that only a benchmark uses; ``tests/benchmarks/test_smoke.py`` fails
by the part's name if a function that it replaces moves.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of the rewrite.

    Attributes:
        name: what the command line and tables call it.
        what: what it does, in a sentence.
        remove: takes it out of this process; call it before the first graph.
        shown_by: the benchmark models, each with a way to run it, that are measured to see what it
            is worth.
    """

    name: str
    what: str
    remove: Callable[[], None]
    shown_by: tuple[tuple[str, str], ...]


def _rows(module: str, table: str, *names: str) -> Callable[[], None]:
    """Leaves rows of a module's table out, by their names, for as long as the process lives."""

    def leave_out() -> None:
        home = importlib.import_module(module)
        rows = getattr(home, table)
        if missing := {*names} - {row.name for row in rows}:
            raise LookupError(f"{module}.{table} has no {', '.join(sorted(missing))}")
        setattr(home, table, tuple(row for row in rows if row.name not in names))

    return leave_out


_rules = functools.partial(_rows, "amp_tf.painting.paint", "RULES")


CONTRACT = {
    "kernels": "keeps kernels in float32 that lose more than a rounding",
    "needs": (
        "keeps in float32 what no product uses, what is subtracted, and what roots and logarithms "
        "are taken of"
    ),
    "origins": (
        "keeps in float32 what adds exact data to a product, and sums that come back to be added to"
    ),
    "values passed through": "casts behind what hands a float32 value on to 16 bit and to float32",
    "range": (
        "keeps in float32 what uses constants beyond 16 bit's range, and squares and quotients "
        "beside float16"
    ),
}
_CONTRACT_SHOWN_BY = tuple(
    (model, way)
    for model in ("bert", "gnmt", "resnet50", "mobilenetv2", "unet", "convnet", "small_mlp")
    for way in ("fit", "predict")
)


def _placement() -> None:
    from amp_tf.cpu import economy

    economy.find_cheaper_in_float32 = lambda *arguments: []


def _islands() -> None:
    from amp_tf.cpu import economy

    economy.find_islands = lambda *arguments: []


def _fused_gradients() -> None:
    from amp_tf.oplists import fusions

    fusions.FUSED_WITH = {}


def _shared_casts() -> None:
    from amp_tf.rewriting import form as planning

    shared = planning.plan_casts

    def one_for_each_reader(*arguments: Any) -> Iterator[Any]:
        for cast, readers in shared(*arguments):
            for number, reader in enumerate(readers):
                name = cast.name if not number else f"{cast.name}-{number}"
                yield cast._replace(name=name), [reader]

    planning.plan_casts = one_for_each_reader


def _fused_followers() -> None:
    from amp_tf.oplists import fusions

    fusions.FUSIONS = ()


def _xla_cost_model() -> None:
    from amp_tf.hooks import state, xla

    xla.hardware = lambda: state.hardware()  # as Grappler sees it, at any time


PARTS = {
    part.name: part
    for part in (
        Part(
            "cost model",
            "keeps in float32 what is faster there",
            _rules("cost model"),
            (
                ("bert", "fit"),
                ("unet", "fit"),
                ("mobilenetv2", "fit"),
                ("gnmt", "fit"),
                ("small_mlp", "fit"),
            ),
        ),
        Part(
            "numerical contract",
            "keeps in float32 what 16 bit would lose: results, running sums, needs, squares and "
            "quotients",
            _rules(*CONTRACT),
            _CONTRACT_SHOWN_BY,
        ),
        *(Part(name, what, _rules(name), _CONTRACT_SHOWN_BY) for name, what in CONTRACT.items()),
        Part(
            "cast placement",
            "moves casts to where all ops, products and casts together cost least (a minimum cut)",
            _placement,
            (("bert", "fit"), ("unet", "fit"), ("mobilenetv2", "fit"), ("small_mlp", "fit")),
        ),
        Part(
            "islands",
            "keeps sets of connected 16-bit nodes in float32 that hold no product",
            _islands,
            (("bert", "fit"), ("gnmt", "fit"), ("small_mlp", "fit")),
        ),
        Part(
            "fused gradients",
            "keeps bias gradients with the convolution they are fused into",
            _fused_gradients,
            (("unet", "fit"),),
        ),
        Part(
            "folding",
            "multiplies batch normalization into the filters of convolutions, for inference",
            _rows("amp_tf.rewriting.pipeline", "PREPARATIONS", "fold"),
            (("resnet50", "predict"), ("mobilenetv2", "predict"), ("ssd", "predict")),
        ),
        Part(
            "lifting",
            "moves biases before the reshaping behind their product, so that they are computed "
            "with it",
            _rows("amp_tf.rewriting.pipeline", "PREPARATIONS", "lift"),
            (("bert", "predict"), ("gpt", "predict"), ("bert", "fit")),
        ),
        Part(
            "fused biases and activations",
            "counts biases, sums and activations behind a product as free, so that they are fused "
            "with it",
            _fused_followers,
            (("resnet50", "predict"), ("mobilenetv2", "predict")),
        ),
        Part(
            "shared casts",
            "casts a tensor once for all its readers: a weight once a step",
            _shared_casts,
            (("bert", "fit"), ("gnmt", "fit"), ("small_mlp", "fit")),
        ),
        Part(
            "absorbed casts",
            "lets a program's own cast to 16 bit take a converted value as it is",
            _rules("existing casts to 16 bit"),
            (("hand_cast_mlp", "fit"),),
        ),
        Part(
            "retargeted casts",
            "lets a program's own cast to float32 give 16 bit where all its readers take that",
            _rules("8 existing casts to float32"),
            (("hand_cast_mlp", "fit"),),
        ),
        Part(
            "variable reads before loops",
            "reads variables that such a loop only reads once, before the loop, and casts them "
            "there",
            _rows("amp_tf.rewriting.pipeline", "CORRECTIONS", "hoist"),
            (("gnmt", "predict"), ("gnmt", "fit")),
        ),
        Part(
            "xla cost model",
            "leaves functions compiled by XLA for a CPU in float32, where nothing gains",
            _xla_cost_model,
            (("bert", "fit_jit"), ("small_mlp", "fit_jit")),
        ),
    )
}


def remove(name: str) -> None:
    """Takes one part out of this process."""
    PARTS[name].remove()
