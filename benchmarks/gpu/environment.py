"""The environments of the two judges, made where they are missing.

``.venv/gpu``, 1.2 GB, has XLA's compiler for GPUs: of ``pip install "jax[cuda12]==0.10.2"`` the
packages that a compilation without a device takes; the libraries for computing on one, 3 GB more,
are left out. ``ptxas`` comes from NVIDIA's ``nvcc`` package: XLA's own assembler knows no V100 any
more.

``.venv/gpu-tensorflow``, 2.2 GB, has TensorFlow's CUDA wheel, which is needed for the kernels that
it registers, and none of CUDA's libraries. amp_tf runs there from the checkout, as it was built for
``.venv/test``.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment in ``.venv`` of the checkout.

    Attributes:
        name: of its folder.
        packages: what is installed with its dependencies.
        alone: what is installed without them.
    """

    name: str
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return ROOT / ".venv" / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def prepare(self) -> None:
        """Makes the environment where it is not there as it should be.

        Raises:
            subprocess.CalledProcessError: pip failed; what it says went to stderr.
        """
        stamp, wanted = (
            self.folder / "packages.txt",
            "\n".join([*self.packages, "--no-deps", *self.alone]),
        )
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"making {self.folder}", file=sys.stderr)
        venv.create(self.folder, clear=True, with_pip=True)
        for packages in (self.packages, ("--no-deps", *self.alone)):
            if packages:
                command = [self.python, "-m", "pip", "install", "--quiet", *packages]
                subprocess.run(command, check=True, stdout=sys.stderr)
        stamp.write_text(wanted)


_JAX = "0.10.2"
COMPILER = Environment(
    "gpu",
    alone=(
        *(f"{name}=={_JAX}" for name in ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt")),
        *(
            "numpy==2.4.6",
            "scipy==1.17.1",
            "ml_dtypes==0.6.0",
            "opt_einsum==3.4.0",
            "nvidia-cuda-nvcc-cu12==12.9.86",
        ),
    ),
)
TENSORFLOW = Environment(
    "gpu-tensorflow", packages=("tensorflow==2.21.0",), alone=("tf_keras==2.21.0",)
)


def compiler_variables() -> dict[str, str]:
    """This process' variables for a process of :data:`COMPILER`: it looks for no device, and finds
    ``ptxas``.
    """
    (nvcc,) = COMPILER.folder.glob("lib/python*/site-packages/nvidia/cuda_nvcc")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={nvcc}".strip()
    path = f"{nvcc / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PATH": path,
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
