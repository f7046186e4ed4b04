"""Trains by spark-tensorflow-distributor, two tasks of a local Spark; takes train_distributed.py's arguments."""

from __future__ import annotations

import pathlib
import sys

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def main() -> None:
    from pyspark.sql import SparkSession
    from spark_tensorflow_distributor import MirroredStrategyRunner

    SparkSession.builder.master("local[2]").getOrCreate()
    arguments, scripts = sys.argv[1:], str(SCRIPTS)

    def train() -> None:
        import sys

        sys.path.insert(0, scripts)
        import train_distributed

        sys.argv = ["train_distributed.py", *arguments]
        train_distributed.main()

    runner = MirroredStrategyRunner(num_slots=2, use_gpu=False, use_custom_strategy=True)  # of this session
    runner.run(train)


if __name__ == "__main__":
    main()
