"""Parts of the rewrite that can be left out, one at a time, to see what each is worth.

    python -m benchmarks.step_time --models unet,bert --ways fit --modes float32,amp_tf --without "cost model,islands"

adds a column for each. Parts that are data are emptied; the others are replaced by a form that does without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of the rewrite.

    Attributes:
        name: what the command line and tables call it.
        what: what it does, in a sentence.
        remove: takes it out of this process; call it before the first graph.
    """

    name: str
    what: str
    remove: Callable[[], None]


def _cost_model() -> None:
    from amp_tf.painting import economy

    economy.drop_unprofitable = lambda *arguments: None


def _placement() -> None:
    from amp_tf.painting import economy

    economy._cut = lambda *arguments: []


def _islands() -> None:
    from amp_tf.painting import economy

    economy._find_islands = lambda *arguments: []


def _slow_kernels() -> None:
    from amp_tf.oplists import costs

    costs.SLOW_KERNELS = ()


def _kernel_pairs() -> None:
    from amp_tf.oplists import costs

    costs.KERNEL_PAIRS = {}


def _fused_gradients() -> None:
    from amp_tf.oplists import costs

    costs.FUSED_WITH = {}


def _shared_casts() -> None:
    from amp_tf.rewriting import planning

    shared = planning._plan_casts

    def one_for_each_reader(*arguments: Any) -> Iterator[Any]:
        for cast in shared(*arguments):
            for number, reader in enumerate(cast.readers):
                name = cast.name if not number else f"{cast.name}-{number}"
                yield cast._replace(name=name, readers=(reader,))

    planning._plan_casts = one_for_each_reader


def _folding() -> None:
    from amp_tf.rewriting import folding

    folding.PRODUCTS = {}


PARTS = {
    part.name: part
    for part in (
        Part("cost model", "keeps in float32 what is faster there", _cost_model),
        Part("placement", "moves casts to where all ops and casts together cost least (a minimum cut)", _placement),
        Part("islands", "keeps sets of 16-bit nodes in float32 that save less than their casts cost", _islands),
        Part("slow kernels", "keeps products in float32 whose 16-bit kernel is slow", _slow_kernels),
        Part("kernel pairs", "gives a pooling and its gradient one type", _kernel_pairs),
        Part("fused gradients", "keeps bias gradients with the convolution they are fused into", _fused_gradients),
        Part("folding", "multiplies batch normalization into the filters of convolutions, for inference", _folding),
        Part("shared casts", "casts a tensor once for all its readers: a weight once a step", _shared_casts),
    )
}


def remove(name: str) -> None:
    """Takes one part out of this process."""
    PARTS[name].remove()
