"""The wide suite: small models of many families, for a cost model that must not fit one suite
alone.

A model is a function of the Keras module and a symbolic tensor for each input, which gives the
output. Half of the models may be used to choose figures by, the others only judge (:func:`half`, by
a hash of the name). Their data is random: they are timed, not trained.
"""

from __future__ import annotations

from benchmarks.models.wide import (  # noqa: F401 - each enters its models
    applications,
    attention,
    convolutions,
    generative,
    sequences,
    tables,
)
from benchmarks.models.wide.registry import FAMILIES, HALVES, MODELS, half

__all__ = ["FAMILIES", "HALVES", "MODELS", "half"]
