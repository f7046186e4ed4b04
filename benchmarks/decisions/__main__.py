"""Makes and checks the table of what amp_tf decides for every benchmark model and every block, on
any host.

    python -m benchmarks.decisions                        makes decisions/table.txt anew
    python -m benchmarks.decisions --check                status 1 if a figure differs by over 1 %
    python -m benchmarks.decisions --against ../before    what another checkout decides otherwise
    python -m benchmarks.decisions --names conv_bn_relu,bert --against ../before

A row is for training or inference, with one of the shipped tables of costs or in float16 for a GPU:
the share of the products' work in 16 bit, the share of the elements written in 16 bit, the casts,
and the gain that the cost model expects. Nothing is timed and no step runs. ``--traces FOLDER``
keeps the traced graphs, which take the most time, for the next call; delete them after a change of
a model.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.decisions import traces
from benchmarks.decisions.figures import Figures
from benchmarks.decisions.rewriting import rewrite_elsewhere, targets
from benchmarks.decisions.table import COMMITTED as TABLE
from benchmarks.decisions.table import Key, decided, differences, lines, read
from benchmarks.models import chosen

#: Models of each kind, for a quick ``--check``; the blocks are checked by
#: ``tests/painting/test_blocks.py``.
QUICK = ("convnet", "resnet50", "mobilenetv2", "unet", "bert", "gpt", "gnmt", "small_mlp")


def new_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--names", default="all", help="models and blocks, comma-separated; all or quick"
    )
    parser.add_argument("--check", action="store_true", help="compare with the committed table")
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="compare with another checkout's amp_tf"
    )
    parser.add_argument(
        "--traces", type=Path, metavar="FOLDER", help="where traced graphs are kept"
    )
    parser.add_argument(
        "--at-once", type=int, default=len(os.sched_getaffinity(0)), help="processes"
    )
    return parser


def names_in(text: str) -> list[str]:
    """The models and blocks that a command line asks for.

    Raises:
        ValueError: one is unknown; the message names the valid ones.
    """
    known = traces.names()
    return chosen(text, known, {"all": known, "quick": QUICK})


def main(arguments: Sequence[str] | None = None) -> int:
    asked = new_parser().parse_args(arguments)
    names = names_in(asked.names)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with tempfile.TemporaryDirectory() as temporary:
        kept = asked.traces or Path(temporary, "traces")
        kept.mkdir(parents=True, exist_ok=True)
        only = list(targets(Path(temporary)).values())
        now = decided(names, kept, only, asked.at_once)
        committed = read(TABLE) if TABLE.exists() else {}
        if asked.against:
            out = Path(temporary, "elsewhere")
            out.mkdir()
            print(f"- {rewrite_elsewhere(asked.against, kept, out, names, only)}")
            print("+ this checkout's")
            before = decided(names, kept, only, asked.at_once, out)
        else:
            before = {key: row for key, row in committed.items() if key[0] in names}
    changed = differences(before, now)
    print(*changed, sep="\n")
    if asked.check and changed:
        print(
            f"{TABLE}: see above; python -m benchmarks.decisions makes it anew, and the "
            "commit says why it changed"
        )
        return 1
    if not asked.check and not asked.against:
        _write(committed | now)
    return 0


def _write(rows: Mapping[Key, Figures]) -> None:
    """Writes the table anew, in the order of the models; rows of models that are gone go."""
    found: dict[Key, Figures] = {}
    for name in traces.names():
        found |= {key: row for key, row in rows.items() if key[0] == name}
    TABLE.write_text("\n".join(lines(found)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
