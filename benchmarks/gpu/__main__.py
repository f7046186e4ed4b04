"""``python -m benchmarks.gpu grappler``: training steps through TensorFlow's graph optimizers for virtual GPUs."""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks.gpu import grappler


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    grappler.add_arguments(commands.add_parser("grappler", help=grappler.__doc__))
    return grappler.main(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
