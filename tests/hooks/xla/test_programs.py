"""Every way into XLA, of scripts that know nothing of amp_tf: products, by element type, of what
XLA was given.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.hooks.running import run

PROGRAMS = Path(__file__).parent / "programs"
ON = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "AMP_TF_PRECISION": "bfloat16"}
RELATIVE = 0.03
"""Tolerance of losses and results: bfloat16 has 8 significant bits, so each product is off by up to
2**-8.
"""

_PRODUCT = re.compile(r"= (\w+)\[[^=]*? (dot|convolution)\(")
_MODULE = re.compile(r"module_\d+\.(.*)\.before_optimizations\.txt")
_SOURCE = re.compile(r", metadata=\{[^}]*\}")  # names of nodes and lines of the program


class Compiled:
    """The modules that XLA was asked to compile: products of each by kind and element type, and all
    texts.
    """

    def __init__(self, folder):
        self.modules: dict[str, Counter[str]] = {}
        self.texts: Counter[str] = Counter()
        for path in folder.glob("*before_optimizations.txt"):
            text = path.read_text()
            self.texts[_SOURCE.sub("", text)] += 1
            match = _MODULE.fullmatch(path.name)
            assert match
            counts = self.modules.setdefault(match[1], Counter())
            for dtype, kind in _PRODUCT.findall(text):
                counts[f"{kind} {dtype}"] += 1

    def products(self, name):
        """The products of all modules whose name holds ``name``."""
        total: Counter[str] = Counter()
        for module, counts in self.modules.items():
            if name in module:
                total += counts
        return total


def run_dumping(program, dump, site_folder, variables):
    # LLVM's optimizations, which come after all that is looked at, take longer than the programs.
    flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_backend_optimization_level=0"
    script, *arguments = program.split()
    command = [str(PROGRAMS / script), *arguments]
    return run(command, site_folder, {**variables, "XLA_FLAGS": flags}), Compiled(dump)


def run_both(program, folder, site_folder):
    return {
        "off": run_dumping(program, folder / "off", site_folder, {}),
        "on": run_dumping(program, folder / "on", site_folder, ON),
    }


def assert_all_converted(runs, name=""):
    off = runs["off"][1].products(name)
    on = runs["on"][1].products(name)
    assert off, f"no product in {sorted(runs['off'][1].modules)}"
    assert all(kind.endswith(" f32") for kind in off)
    assert on == Counter({kind.replace(" f32", " bf16"): count for kind, count in off.items()})


def assert_close(on, off):
    on = np.asarray(on, "float64")
    off = np.asarray(off, "float64")
    np.testing.assert_allclose(
        on, off, rtol=RELATIVE, atol=RELATIVE * max(1e-3, float(np.abs(off).max()))
    )


@pytest.fixture(scope="module")
def keras_jit(tmp_path_factory, site_folder):
    return run_both("keras_jit.py", tmp_path_factory.mktemp("keras_jit"), site_folder)


@pytest.fixture(scope="module")
def functions(tmp_path_factory, site_folder):
    return run_both("functions.py", tmp_path_factory.mktemp("functions"), site_folder)


@pytest.fixture(scope="module")
def tf_keras_jit(tmp_path_factory, site_folder):
    return run_both("keras_jit.py tf_keras", tmp_path_factory.mktemp("tf_keras_jit"), site_folder)


KERAS_WAYS = ("fit", "evaluate", "predict", "new_shape", "steps_per_execution", "mirrored", "auto")


def test_keras_converts_every_product_of_every_compiled_step(keras_jit):
    assert_all_converted(keras_jit)
    # each of the ways compiles a step of its own
    assert sum("one_step_on_data" in module for module in keras_jit["on"][1].modules) >= len(
        KERAS_WAYS
    )


@pytest.mark.parametrize("way", KERAS_WAYS)
def test_keras_results_are_close_to_float32(keras_jit, way):
    assert_close(keras_jit["on"][0].result[way], keras_jit["off"][0].result[way])


def test_keras_on_a_pretended_gpu_machine_chooses_jit_and_the_summary_counts_it(keras_jit):
    ended = keras_jit["on"][0]
    assert ended.result["auto_is_jit"] is True
    assert ended.converted > 0
    assert ended.warnings == []


def test_auto_on_a_cpu_gives_xla_the_very_programs_of_float32(tf_keras_jit, tmp_path, site_folder):
    """So ``auto`` cannot be slower there: only the first step can differ, by the time that amp_tf
    thinks.
    """
    ended, compiled = run_dumping(
        "keras_jit.py tf_keras", tmp_path, site_folder, {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}
    )
    assert compiled.texts == tf_keras_jit["off"][1].texts
    assert tf_keras_jit["on"][1].texts != compiled.texts
    assert ended.converted == 0
    assert int(ended.summary[3].replace(",", "")) > 0


FUNCTION_WAYS = (
    "tape_inside",
    "tape_outside",
    "second_order",
    "custom_gradient",
    "retraced",
    "replica",
    "in_session",
    "served",
)


@pytest.mark.parametrize("way", FUNCTION_WAYS)
def test_function_has_all_its_products_in_bfloat16_and_results_close_to_float32(functions, way):
    assert_all_converted(functions, way)
    for on, off in zip(
        functions["on"][0].result[way], functions["off"][0].result[way], strict=True
    ):
        assert_close(on, off)


def test_plain_function_that_calls_a_compiled_one_gets_the_converted_one(functions):
    assert functions["on"][0].warnings == []
    result = functions["on"][0].result
    np.testing.assert_array_equal(
        result["plain_caller"][0], 2.0 * np.asarray(result["retraced"][0])
    )
    assert_close(result["plain_caller"][0], functions["off"][0].result["plain_caller"][0])


def test_tf_keras_is_converted(tf_keras_jit):
    assert_all_converted(tf_keras_jit)
    assert_close(tf_keras_jit["on"][0].result["fit"], tf_keras_jit["off"][0].result["fit"])
