"""The suites: what is installed for each, where its tests are, and which calls become functions.

Only distributions that a package index has are used. Those of TensorFlow and of tf_keras (2.16,
2.21) have no test files.
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
        packages: requirements besides TensorFlow, Keras and amp_tf.
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
            packages=("scikit-learn",),
            quick=r"layers/(core|attention|convolutional|normalization)/|models/",
            imports=("tensorflow", "keras"),
            classes=("keras.src.layers.layer:Layer", "keras.src.ops.operation:Operation"),
            functions=tuple(
                f"keras.src.ops.{name}" for name in ("numpy", "nn", "linalg", "math", "image")
            ),
            variables={"KERAS_BACKEND": "tensorflow"},
        ),
    )
}


def prepare(suite: Suite) -> venvs.Venv:
    """The environment of a suite, up to date.

    Raises:
        venvs.SetupError: pip failed; the text has its last lines.
    """
    venv = venvs.make(FOLDER / suite.name)
    wanted = venvs.fingerprint(*suite.packages, editable=True)
    if venv.read_stamp() == wanted:
        return venv
    packages = ("--editable", ".[cpu]", "pytest>=8", *suite.packages)
    venv.pip("install", *packages, title=f"install what {suite.name} needs")
    venv.write_stamp(wanted)
    return venv
