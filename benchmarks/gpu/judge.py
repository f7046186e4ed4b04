"""What amp_tf must reach on GPUs beside its peers, judged on tiny forms of a few models, both ways.

    python -m benchmarks.gpu judge                        makes the rows anew, in both environments, and judges them
    python -m benchmarks.gpu judge FILE.json …            says what the rows of ``compile`` and ``grappler`` miss

The rows of the tiny forms are in ``tiny_compiled.json`` and ``tiny_grappler.json`` here, and tests
judge these files. What is missed and known stands in :data:`KNOWN` with its figure: neither may it
get worse, nor stay there when it is mended.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import compiled, grappler

Row = Mapping[str, Any]
COMPILED = Path(__file__).parent / "tiny_compiled.json"
GRAPPLED = Path(__file__).parent / "tiny_grappler.json"
COMPILED_MODELS = "resnet50,bert,gnmt,gru,unet"
GRAPPLED_MODELS = "resnet50,bert,gnmt,gru_cudnn,unet,tf_keras_convnet"
SLACK = 0.005
"""By how much a known miss may grow: figures are rounded."""


def _wide_products(row: Row) -> int:
    return sum(
        count for kinds, count in row["products"].items() if "f32" in kinds or "float32" in kinds
    )


def _lost_products(ours: Row, peer: Row) -> float:
    return max(0, _wide_products(ours) - _wide_products(peer))


def _ratio(name: str) -> Callable[[Row, Row], float]:
    return lambda ours, peer: ours[name] / peer[name] if peer[name] else float(ours[name] > 0) + 1


def _lost_layouts(ours: Row, peer: Row) -> float:
    """16-bit convolutions in NCHW, where the peer has them in NHWC."""

    def count(row: Row) -> int:
        return sum(
            n for kind, n in row["convolutions"].items() if "NCHW" in kind and "float32" not in kind
        )

    return max(0, count(ours) - count(peer))


def _lost_convolutions(ours: Row, peer: Row) -> float:
    def count(row: Row) -> int:
        return sum(n for kind, n in row["convolutions"].items() if "float32" in kind)

    return max(0, count(ours) - count(peer))


Rules = dict[str, tuple[Callable[[Row, Row], float], float]]
COMPILED_RULES: Rules = {
    "products in float32 that the policy has in 16 bit": (_lost_products, 0),
    "cast kernels, as a multiple of the policy's": (_ratio("casts"), 1.1),
    "temporary memory, as a multiple of the policy's": (_ratio("temp_mib"), 1.03),
    "bytes moved, as a multiple of the policy's": (_ratio("mib"), 1.03),
}
"""Each with how its figure is found and the most that it may be."""
_CASTS: Rules = {"casts, as a multiple of those of {}": (_ratio("casts"), 1.1)}
BESIDE_PASS: Rules = {
    "products in float32 that {} has in 16 bit": (_lost_products, 0),
    "convolutions in float32 that {} has in 16 bit": (_lost_convolutions, 0),
    "16-bit convolutions in NCHW": (_lost_layouts, 0),
    "Transposes more than {} has": (
        lambda ours, peer: max(0, ours["transposes"] - peer["transposes"]),
        0,
    ),
}
BESIDE_POLICY: Rules = {
    "products in float32 that {} has in 16 bit": (_lost_products, 0),
    **_CASTS,
}
"""Of graphs for which there is no policy, casts are judged beside TensorFlow's pass."""

KNOWN: dict[str, float] = {
    "resnet50 train amp_float16 h100: temporary memory, as a multiple of the policy's": 1.053,
    "bert train amp_float16 h100: temporary memory, as a multiple of the policy's": 1.047,
    "bert train amp_float16 h100: bytes moved, as a multiple of the policy's": 1.07,
    "bert train amp_bfloat16 h100: temporary memory, as a multiple of the policy's": 1.038,
    "bert train amp_bfloat16 h100: bytes moved, as a multiple of the policy's": 1.053,
    "gnmt train amp_float16 h100: cast kernels, as a multiple of the policy's": 1.25,
    "gnmt train amp_float16 h100: temporary memory, as a multiple of the policy's": 1.222,
    "gnmt train amp_float16 h100: bytes moved, as a multiple of the policy's": 1.263,
    "gnmt train amp_bfloat16 h100: cast kernels, as a multiple of the policy's": 1.429,
    "gnmt train amp_bfloat16 h100: temporary memory, as a multiple of the policy's": 1.206,
    "gnmt train amp_bfloat16 h100: bytes moved, as a multiple of the policy's": 1.257,
    "gru train amp_float16 h100: cast kernels, as a multiple of the policy's": 1.167,
    "gru train amp_float16 h100: temporary memory, as a multiple of the policy's": 1.289,
    "gru train amp_float16 h100: bytes moved, as a multiple of the policy's": 1.236,
    "gru train amp_bfloat16 h100: cast kernels, as a multiple of the policy's": 1.4,
    "gru train amp_bfloat16 h100: temporary memory, as a multiple of the policy's": 1.257,
    "gru train amp_bfloat16 h100: bytes moved, as a multiple of the policy's": 1.233,
    "unet train amp_float16 h100: temporary memory, as a multiple of the policy's": 1.237,
    "resnet50 float16: casts, as a multiple of those of Keras policy": 1.295,
    "gnmt float16: casts, as a multiple of those of Keras policy": 2.167,
    "unet float16: casts, as a multiple of those of Keras policy": 1.179,
}
"""What is missed at the tiny size, with its figure.

resnet50 had 1.234 before a normalization's shift and gradients were 16 bit, for half as much again
in 16 bit.
"""


def misses(rows: Sequence[Row]) -> dict[str, float]:
    """What rows of ``compile`` or ``grappler`` miss: the figure by what is missed.

    Of the rows of ``grappler`` it is the largest figure of all compute capabilities.
    """
    found: dict[str, float] = {}
    for row in rows:
        if "capability" in row:
            missed = _grappled_misses(rows, row)
            found |= {name: max(figure, found.get(name, 0)) for name, figure in missed.items()}
        elif policy := compiled.peers(rows, row)[1]:
            step = f"{row['model']} {row['way']} {row['variant']} {row['target']}"
            found |= _missed(step, COMPILED_RULES, row, policy)
    return found


def _grappled_misses(rows: Iterable[Row], ours: Row) -> dict[str, float]:
    same = ("model", "capability", "precision")
    peers = {row["mode"]: row for row in rows if all(row[name] == ours[name] for name in same)}
    rules = {
        "tf_pass": BESIDE_PASS if "policy" in peers else BESIDE_PASS | _CASTS,
        "policy": BESIDE_POLICY,
    }
    found: dict[str, float] = {}
    for mode in rules.keys() & peers.keys() if ours["mode"] == "amp_tf" else ():
        named = {
            name.format(grappler.MODES[mode].title): rule for name, rule in rules[mode].items()
        }
        found |= _missed(f"{ours['model']} {ours['precision']}", named, ours, peers[mode])
    return found


def _missed(step: str, rules: Rules, ours: Row, peer: Row) -> dict[str, float]:
    figures = {
        f"{step}: {name}": (find(ours, peer), limit) for name, (find, limit) in rules.items()
    }
    return {name: round(figure, 3) for name, (figure, limit) in figures.items() if figure > limit}


def told(rows: Sequence[Row]) -> str:
    """What rows miss, a line each."""
    return "".join(f"- {name}: {figure}\n" for name, figure in misses(rows).items())


def disagreements(found: Mapping[str, float], known: Mapping[str, float]) -> list[str]:
    """Misses that are new or worse than known, and known ones that are there no more."""
    worse = [
        f"{name}: {figure}, known is {known.get(name, 'none')}"
        for name, figure in found.items()
        if figure > known.get(name, 0) + SLACK
    ]
    return worse + [
        f"{name}: mended, to be taken from the known ones" for name in known if name not in found
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", type=Path, nargs="*", help="say what the rows in these miss, and make none"
    )


def main(options: argparse.Namespace) -> int:
    if options.files:
        print(*(told(compiled.read(path)) for path in options.files), sep="", end="")
        return 0
    if status := _make():
        return status
    found = misses(compiled.read(COMPILED)) | misses(grappler.read(GRAPPLED))
    wrong = disagreements(found, KNOWN)
    print(*(f'    "{name}": {figure},' for name, figure in found.items()), sep="\n")
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


def _make() -> int:
    from benchmarks.gpu.__main__ import run_command

    COMPILED.unlink(missing_ok=True)
    steps = ["--models", COMPILED_MODELS, "--size", "tiny", "--ways", "train", "--targets", "h100"]
    status = run_command(["compile", *steps, "--out", "exported/tiny", "--json", str(COMPILED)])
    return status or run_command(["grappler", "--models", GRAPPLED_MODELS, "--json", str(GRAPPLED)])
