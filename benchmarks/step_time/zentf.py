"""The environment of AMD's zentf plugin, which brings its own optimizer of graphs and wants an
older numpy.

    python -m benchmarks.step_time.zentf    makes .venv/zentf, in which the mode "zentf" runs

The plugin is for inference, in AMD's own words. It brings its own threads, which wait for work in a
busy loop; of the settings for these and for TensorFlow's own that were tried, those below are its
fastest on 2 cores, by three times and more for small models.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".venv" / "zentf"
PYTHON = FOLDER / "bin" / "python"
PACKAGES = ("tensorflow-cpu==2.21.0", "zentf==2.21.0.0", "numpy<2")
ALONE = ("tf_keras==2.21.0",)  # with its dependencies it would bring the full tensorflow wheel
VARIABLES = {
    "TF_ENABLE_ZENDNN_OPTS": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_ZENDNN_PLUGIN_BF16": "1",
    "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    "OMP_WAIT_POLICY": "ACTIVE",
    "OMP_DYNAMIC": "FALSE",
    "TF_NUM_INTEROP_THREADS": "1",
}


def make() -> None:
    """Makes the environment anew, in a minute.

    Raises:
        subprocess.CalledProcessError: pip failed; what it says went to stderr.
    """
    venv.create(FOLDER, clear=True, with_pip=True)
    for arguments in (PACKAGES, ("--no-deps", *ALONE)):
        subprocess.run(
            [PYTHON, "-m", "pip", "install", "--quiet", *arguments], check=True, stdout=sys.stderr
        )


if __name__ == "__main__":
    make()
