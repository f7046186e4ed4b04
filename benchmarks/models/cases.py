"""The models that are compiled for GPUs, at realistic widths and at a size for tests.

They are models of the other modules. A model of the suite keeps the widths of its paper, has two of
its repeated layers, and a smaller batch where XLA's compiler takes long. A model of the wide suite
keeps its widths and has a larger batch. So figures can be compared with float32 and Keras' policy
at the same size, but not with the whole models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.models import language, recurrent, tabular, vision, wide
from benchmarks.models.language import TransformerSize
from benchmarks.models.recurrent import TranslationSize
from benchmarks.models.tabular import NcfSize
from benchmarks.models.vision import ImageSize
from benchmarks.models.wide.registry import WideSize
from benchmarks.models.workload import Benchmark, chosen

SIZES = ("tiny", "wide")
_SUITE: dict[str, Benchmark] = {}
for _family in (vision, tabular, language, recurrent):
    for _row in _family.BENCHMARKS:
        _SUITE[_row.name] = _row


CASES: dict[str, Benchmark] = {}
"""All of them, by name."""


def _enter(name: str, row: Benchmark, figures: Any, tiny: Any = None, title: str = "") -> None:
    """Enters a model with the figures of both sizes; tiny ones are those of the row by default."""
    sizes = {"tiny": tiny or row.sizes["tiny"], "wide": figures}
    CASES[name] = dataclasses.replace(row, title=title or row.title, sizes=sizes)


def _enter_wide(name: str, model: str, title: str, batch: int) -> None:
    """Enters a model of the wide suite, which has a size for each batch."""
    _enter(name, wide.MODELS[model], WideSize(batch), WideSize(2), title)


_BERT = TransformerSize(384, 30_522, 1024, 16, 2, 10, (10,))
_BERT_TANH = dataclasses.replace(_BERT, has_exact_gelu=False)
_TINY_BERT_TANH = dataclasses.replace(_SUITE["bert"].sizes["tiny"], has_exact_gelu=False)
_GPT = TransformerSize(1024, 50_304, 768, 12, 2, 4, (4,))
_NCF = NcfSize(138_493, 26_744, 64, (256, 256, 128, 64), 65_536, (65_536,))

_enter("resnet50", _SUITE["resnet50"], ImageSize(224, 1000, 1.0, 64, (64,)))
_enter("bert", _SUITE["bert"], _BERT, title="BERT, erf-Gelu")
_enter("bert_tanh", _SUITE["bert"], _BERT_TANH, _TINY_BERT_TANH, "BERT, tanh-Gelu")
_enter("gnmt", _SUITE["gnmt"], TranslationSize(50, 32_320, 1024, 2, 128, (128,)))
_enter("gru", _SUITE["gru"], TranslationSize(50, 10_000, 1024, 2, 64, (64,)))
_enter("unet", _SUITE["unet"], ImageSize(256, 2, 1.0, 8, (8,)))
_enter("mobilenetv2", _SUITE["mobilenetv2"], ImageSize(224, 1000, 1.0, 64, (64,)))
_enter_wide("efficientnet", "efficientnet", "EfficientNet B0", 128)
_enter_wide("vit", "vision_transformer", "ViT", 256)
_enter("gpt", _SUITE["gpt"], _GPT, title="GPT-2, causal")
_enter("ncf", _SUITE["ncf"], _NCF)
_enter_wide("dlrm", "feature_interactions", "DLRM", 8192)
_enter_wide("wavenet", "wavenet", "WaveNet", 64)
_enter_wide("unet3d", "volume_unet", "3-D U-Net", 16)
_enter_wide("convlstm", "conv_lstm", "ConvLSTM", 32)
_enter_wide("ddpm", "diffusion", "DDPM", 64)


def names(text: str, known: Mapping[str, object] = CASES) -> list[str]:
    """The names that a command-line value such as ``"bert,gru"`` or ``"all"`` asks for.

    Raises:
        ValueError: a name is unknown; the message names the valid ones.
    """
    return chosen(text, known, {"all": list(known)})
