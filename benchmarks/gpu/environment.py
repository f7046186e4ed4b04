"""The environment of XLA's compiler for GPUs, made where it is missing.

``.venv/gpu``, 1.2 GB, has of ``pip install "jax[cuda12]==0.10.2"`` the packages that a compilation
without a device takes; the libraries for computing on one, 3 GB more, are left out. ``ptxas`` comes
from NVIDIA's ``nvcc`` package: XLA's own assembler knows no V100 any more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv" / "gpu"
PYTHON = FOLDER / "bin" / "python"
PACKAGES = (
    "jax==0.10.2",
    "jaxlib==0.10.2",
    "jax-cuda12-plugin==0.10.2",
    "jax-cuda12-pjrt==0.10.2",
    "numpy==2.4.6",
    "scipy==1.17.1",
    "ml_dtypes==0.6.0",
    "opt_einsum==3.4.0",
    "nvidia-cuda-nvcc-cu12==12.9.86",
)


def prepare() -> None:
    """Makes the environment where it is not there as it should be.

    Raises:
        subprocess.CalledProcessError: pip failed; what it says went to stderr.
    """
    stamp = FOLDER / "packages.txt"
    wanted = "\n".join(PACKAGES)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"making {FOLDER}", file=sys.stderr)
    venv.create(FOLDER, clear=True, with_pip=True)
    command = [PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES]
    subprocess.run(command, check=True, stdout=sys.stderr)
    stamp.write_text(wanted)


def variables() -> dict[str, str]:
    """This process' variables for the compiler: it looks for no device, and finds ``ptxas``."""
    (nvcc,) = FOLDER.glob("lib/python*/site-packages/nvidia/cuda_nvcc")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={nvcc}".strip()
    path = f"{nvcc / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PATH": path,
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
