"""The models that are compiled for GPUs, at realistic widths and at a size for tests.

They are models of the other modules. A model with a real size keeps its widths, has two of its
repeated layers, and a smaller batch where XLA's compiler takes long. A model of the wide suite
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
from benchmarks.models.workload import Workload

SIZES = ("tiny", "wide")
_SUITE = {
    row.name: row for family in (vision, tabular, language, recurrent) for row in family.BENCHMARKS
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One model.

    Attributes:
        title: what tables call it.
        model: its name in ``benchmarks.models``.
        sizes: the figures of its sizes; of the wide suite's models the batch sizes, which are all
            that they have.
    """

    title: str
    model: str
    sizes: dict[str, Any]

    def workload(self, size: str) -> Workload:
        """The workload at one of :data:`SIZES`."""
        figures = self.sizes[size]
        if self.model in wide.MODELS:
            return dataclasses.replace(
                wide.MODELS[self.model].workload(), batch=figures, batches=(figures,)
            )
        return _SUITE[self.model].build(self.model, size, figures)


def _of_suite(model: str, figures: Any, tiny: Any = None, title: str = "") -> Case:
    row = _SUITE[model]
    return Case(title or row.title, model, {"tiny": tiny or row.sizes["tiny"], "wide": figures})


def _of_wide_suite(model: str, title: str, batch: int) -> Case:
    return Case(title, model, {"tiny": 2, "wide": batch})


_TINY_BERT = dataclasses.replace(_SUITE["bert"].sizes["tiny"], has_exact_gelu=False)

CASES = {
    "resnet50": _of_suite("resnet50", ImageSize(224, 1000, 1.0, 64, (64,))),
    "bert": _of_suite(
        "bert", TransformerSize(384, 30_522, 1024, 16, 2, 10, (10,)), title="BERT, erf-Gelu"
    ),
    "bert_tanh": _of_suite(
        "bert",
        TransformerSize(384, 30_522, 1024, 16, 2, 10, (10,), has_exact_gelu=False),
        tiny=_TINY_BERT,
        title="BERT, tanh-Gelu",
    ),
    "gnmt": _of_suite("gnmt", TranslationSize(50, 32_320, 1024, 2, 128, (128,))),
    "gru": _of_suite("gru", TranslationSize(50, 10_000, 1024, 2, 64, (64,))),
    "unet": _of_suite("unet", ImageSize(256, 2, 1.0, 8, (8,))),
    "mobilenetv2": _of_suite("mobilenetv2", ImageSize(224, 1000, 1.0, 64, (64,))),
    "efficientnet": _of_wide_suite("efficientnet", "EfficientNet B0", 128),
    "vit": _of_wide_suite("vision_transformer", "ViT", 256),
    "gpt": _of_suite(
        "gpt", TransformerSize(1024, 50_304, 768, 12, 2, 4, (4,)), title="GPT-2, causal"
    ),
    "ncf": _of_suite("ncf", NcfSize(138_493, 26_744, 64, (256, 256, 128, 64), 65_536, (65_536,))),
    "dlrm": _of_wide_suite("feature_interactions", "DLRM", 8192),
    "wavenet": _of_wide_suite("wavenet", "WaveNet", 64),
    "unet3d": _of_wide_suite("volume_unet", "3-D U-Net", 16),
    "convlstm": _of_wide_suite("conv_lstm", "ConvLSTM", 32),
    "ddpm": _of_wide_suite("diffusion", "DDPM", 64),
}


def names(text: str, known: Mapping[str, object] = CASES) -> list[str]:
    """The names that a command-line value such as ``"bert,gru"`` or ``"all"`` asks for.

    Raises:
        ValueError: a name is unknown; the message names the valid ones.
    """
    asked = list(known) if text == "all" else [name.strip() for name in text.split(",")]
    if unknown := [name for name in asked if name not in known]:
        raise ValueError(
            f"Nothing here is called {', '.join(unknown)}. Valid names: all, {', '.join(known)}."
        )
    return asked
