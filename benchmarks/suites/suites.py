"""The suites: what is installed for each, where its tests are, and which calls become functions.

Libraries come from a package index. If a distribution has no tests, the repository's are laid
beside the environments, without the library's own files, so that its installation is tested.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import venvs  # noqa: E402  (a module of that folder)

FOLDER = ROOT / ".venv" / "suites"
SOURCES = FOLDER / "sources"
MISSING = """\
{name} is left out: its distribution has no tests, and {folder} does not exist. Make that folder, \
and lay the tests of {source} there: in a checkout say
  git archive {tag} | tar -x -C {folder} --wildcards {wanted}{prepared}
"""
# tf_keras' own build does this to its sources: the library is in a package below.
_BELOW_SRC = (
    "find . -name '*_test.py' -exec sed -i -E "
    "'s/^( *from tf_keras)\\b/\\1.src/; s/^( *import tf_keras) as/\\1.src as/' {} +"
)

_KERAS = ("keras.src.layers.layer:Layer", "__call__")
_TF_KERAS = ("tf_keras.src.engine.base_layer:Layer", "__call__")
_LEGACY = {"TF_USE_LEGACY_KERAS": "1"}


@dataclasses.dataclass(frozen=True)
class Suite:
    """The tests of one library.

    Attributes:
        name: what the command line and tables call it.
        distribution: gives the version.
        files: a pattern of the test files, below ``site-packages`` or the folder of sources.
        source: the repository that has the tests, and their tag; "" if the distribution has them.
        wanted: patterns of what is needed of it.
        prepared: a command that is then run in the folder of sources.
        packages: requirements besides TensorFlow, Keras and amp_tf.
        alone: requirements that are installed without their own, some of which have no use here.
        quick: matches the paths of files that ``--quick`` runs.
        imports: modules that are imported before the process of a file is forked.
        calls: classes, as ``module:class``, and the method that becomes a function, in subclasses,
            too.
        functions: modules whose public functions become such.
        flags: of absl, for modules that define them.
        variables: of the environment.
    """

    name: str
    distribution: str
    files: str
    source: str = ""
    wanted: str = "'*_test.py'"
    prepared: str = ""
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    quick: str = r"(?!)"
    imports: tuple[str, ...] = ("tensorflow",)
    calls: tuple[tuple[str, str], ...] = ()
    functions: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    variables: dict[str, str] = dataclasses.field(default_factory=dict)


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "keras",
            "keras",
            "keras/src/**/*_test.py",
            packages=("jax", "scikit-learn"),  # tests of trainers and images import JAX
            quick=r"layers/(core|attention|convolutional|normalization)/|models/",
            imports=("tensorflow", "keras"),
            calls=(
                _KERAS,
                ("keras.src.ops.operation:Operation", "__call__"),
                ("keras.src.losses.loss:Loss", "__call__"),
            ),
            functions=tuple(
                f"keras.src.ops.{name}" for name in ("numpy", "nn", "linalg", "math", "image")
            ),
            variables={"KERAS_BACKEND": "tensorflow"},
        ),
        Suite(
            "tf_keras",
            "tf_keras",
            "tf_keras/**/*_test.py",
            source="keras-team/tf-keras v2.21.0",
            prepared=_BELOW_SRC,
            packages=("portpicker", "scipy", "pandas", "tensorboard"),
            alone=("tf_keras==2.21.*",),
            quick=r"layers/core/|layers/rnn/lstm_test|optimizers/",
            imports=("tensorflow", "tf_keras"),
            calls=(_TF_KERAS,),
            variables=_LEGACY,
        ),
        Suite(
            "tensorflow",
            "tensorflow-cpu",
            "tensorflow/[cp]*/**/*_test.py",
            source="tensorflow/tensorflow r2.21",
            wanted="'*_test.py' 'tensorflow/compiler/tests/*.py'",
            packages=("portpicker", "scipy"),
            quick=r"parallel_for/|xla_jit_test|math_ops/.*matmul",
            calls=(("tensorflow.python.ops.linalg.linear_operator:LinearOperator", "_matmul"),),
            functions=tuple(
                f"tensorflow.python.ops.{name}"
                for name in ("math_ops", "nn_ops", "special_math_ops")
            ),
            flags=("--test_device=XLA_CPU", "--types=DT_FLOAT,DT_DOUBLE,DT_INT32,DT_INT64"),
        ),
        Suite(
            "sonnet",
            "dm-sonnet",
            "sonnet/src/**/*_test.py",
            packages=("dm-sonnet", "dm-tree", "tabulate", "wrapt"),
            quick=r"src/(linear|conv|recurrent|base)_test",
            imports=("tensorflow", "sonnet"),
            calls=(("sonnet.src.base:Module", "__call__"),),
        ),
        Suite(
            "tensorflow_probability",
            "tensorflow-probability",
            "tensorflow_probability/python/**/*_test.py",
            source="tensorflow/probability v0.25.0",
            wanted="'*_test*.py'",
            packages=(
                "tensorflow-probability==0.25.*",
                "hypothesis",
                "scipy",
                "mock",
                "portpicker",
            ),
            alone=("tf_keras==2.21.*",),
            quick=r"python/layers/",
            imports=("tensorflow", "tensorflow_probability"),
            calls=(
                ("tensorflow_probability.python.distributions:Distribution", "_call_log_prob"),
                ("tensorflow_probability.python.distributions:Distribution", "_call_sample_n"),
                ("tensorflow_probability.python.bijectors:Bijector", "_call_forward"),
                ("tensorflow_probability.python.bijectors:Bijector", "_call_inverse"),
                _TF_KERAS,
            ),
            variables=_LEGACY,
        ),
        Suite(
            "tf_agents",
            "tf-agents",
            "tf_agents/**/*_test.py",
            packages=(
                *("tensorflow-probability==0.25.*", "gin-config", "gym==0.23.0"),
                *("pillow", "tensorboard"),
            ),
            alone=("tf-agents", "tf_keras==2.21.*"),
            quick=r"agents/dqn/|networks/",
            imports=("tensorflow", "tf_agents"),
            calls=(_TF_KERAS,),
            variables=_LEGACY,
        ),
        Suite(
            "keras_rs",
            "keras-rs",
            "keras_rs/src/**/*_test.py",
            source="keras-team/keras-rs v0.4.0",
            wanted="'*_test.py' 'keras_rs/src/testing/*'",
            packages=("keras-rs==0.4.0", "scikit-learn"),
            quick=r"feature_interaction|retrieval",
            imports=("tensorflow", "keras_rs"),
            calls=(_KERAS, ("keras.src.losses.loss:Loss", "__call__")),
            variables={"KERAS_BACKEND": "tensorflow"},
        ),
        Suite(
            "gpflow",
            "gpflow",
            "tests/gpflow/**/test_*.py",
            source="GPflow/GPflow v2.9.2",  # the distribution lacks the modules above its tests
            wanted="'tests/*'",
            packages=(
                *("numpy<2", "check-shapes", "deprecated", "multipledispatch", "scipy"),
                *("setuptools<81", "tabulate", "tensorflow-probability==0.25.*"),
            ),
            alone=("gpflow==2.9.2", "tf_keras==2.21.*"),
            quick=r"models/test_(gpr|svgp)\.",
            imports=("tensorflow", "gpflow"),
            calls=(("gpflow.kernels:Kernel", "__call__"),),
        ),
        Suite(
            "model_garden",
            "tf-models-official",
            "official/nlp/modeling/**/*_test.py",
            packages=("gin-config", "pyyaml", "scipy", "six"),
            alone=("tf-models-official", "tf_keras==2.21.*"),
            quick=r"layers/",
            imports=("tensorflow", "tf_keras"),
            calls=(_TF_KERAS,),
            variables=_LEGACY,
        ),
        Suite(
            "recommenders",
            "tensorflow-recommenders",
            "tensorflow_recommenders/**/*_test.py",
            alone=("tensorflow-recommenders", "tf_keras==2.21.*"),
            quick=r"layers/",
            imports=("tensorflow", "tensorflow_recommenders"),
            calls=(_TF_KERAS,),
            variables=_LEGACY,
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
    packages = ("--editable", ".[cpu]", "pytest>=8", *suite.packages)
    venv.pip("install", *packages, title=f"install what {suite.name} needs")
    if suite.alone:
        venv.pip("install", "--no-deps", *suite.alone, title=f"install {suite.alone[0]}")
    venv.write_stamp(wanted)
    return venv


def folder_of(suite: Suite, venv: venvs.Venv) -> Path:
    """The folder that the paths of a suite's files start from."""
    if suite.source:
        return SOURCES / suite.name
    (site,) = venv.path.glob("lib/python*/site-packages")
    return site


def missing(suite: Suite) -> str:
    """Returns how to get the tests of a suite, or nothing if they are there."""
    folder = SOURCES / suite.name
    if not suite.source or folder.is_dir():
        return ""
    return MISSING.format(
        name=suite.name,
        folder=folder,
        source=suite.source,
        tag=suite.source.split()[1],
        wanted=suite.wanted,
        prepared=suite.prepared and f"\nand in that folder\n  {suite.prepared}",
    )
