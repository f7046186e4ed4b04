"""The suites: what is installed for each, where its tests are, and which calls become functions.

Only distributions that a package index has are used. tf_keras has no tests in its own (2.16 to 2.21
were looked at), so the model garden's stand for it: its layers and models are written for tf_keras.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import venvs  # noqa: E402  (a module of that folder)

FOLDER = ROOT / ".venv" / "suites"


@dataclasses.dataclass(frozen=True)
class Suite:
    """The tests of one library.

    Attributes:
        name: what the command line and tables call it.
        distribution: has the tests, and gives the version.
        packages: requirements that are installed with their own dependencies.
        alone: requirements that are installed without.
        files: a pattern of the test files, below ``site-packages``.
        quick: matches the paths of files that ``--quick`` runs.
        imports: modules that are imported before the process of a file is forked.
        classes: ``module:class`` whose calls, and those of its subclasses, become functions.
        functions: modules whose public functions do, too.
        variables: of the environment.
    """

    name: str
    distribution: str
    files: str
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    quick: str = r"(?!)"
    imports: tuple[str, ...] = ("tensorflow",)
    classes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    variables: dict[str, str] = dataclasses.field(default_factory=dict)


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "keras",
            "keras",
            "keras/src/**/*_test.py",
            quick=r"layers/(core|attention|convolutional|normalization)/|models/",
            imports=("tensorflow", "keras"),
            classes=("keras.src.layers.layer:Layer", "keras.src.ops.operation:Operation"),
            functions=tuple(
                f"keras.src.ops.{name}" for name in ("numpy", "nn", "linalg", "math", "image")
            ),
            variables={"KERAS_BACKEND": "tensorflow"},
        ),
        Suite(
            "sonnet",
            "dm-sonnet",
            "sonnet/src/**/*_test.py",
            packages=("dm-sonnet", "dm-tree", "tabulate", "wrapt"),
            quick=r"src/(linear|conv|recurrent|base)_test",
            imports=("tensorflow", "sonnet"),
            classes=("sonnet.src.base:Module",),
        ),
        Suite(
            "model_garden",
            "tf-models-official",
            "official/nlp/modeling/**/*_test.py",
            packages=("gin-config", "pyyaml", "six"),
            alone=("tf-models-official", "tf_keras"),
            quick=r"layers/",
            imports=("tensorflow", "tf_keras"),
            classes=("tf_keras.src.engine.base_layer:Layer",),
            variables={"TF_USE_LEGACY_KERAS": "1"},
        ),
        Suite(
            "tensorflow",
            "tensorflow-cpu",
            "tensorflow/python/ops/*_test_base.py",
        ),
    )
}


def prepare(suite: Suite) -> venvs.Venv:
    """The environment of a suite, up to date.

    Raises:
        venvs.SetupError: pip failed; the text has its last lines.
    """
    venv = venvs.make(FOLDER / suite.name)
    wanted = venvs.fingerprint(*suite.packages, *suite.alone, editable=True)
    if venv.read_stamp() == wanted:
        return venv
    packages = ("--editable", ".[cpu]", "pytest>=8", "scikit-learn", *suite.packages)
    venv.pip("install", *packages, title=f"install what {suite.name} needs")
    if suite.alone:  # their own requirements name packages that their tests here do not need
        venv.pip("install", "--no-deps", *suite.alone, title=f"install {suite.alone[0]}")
    venv.write_stamp(wanted)
    return venv
