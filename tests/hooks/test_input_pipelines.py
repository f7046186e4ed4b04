"""Input pipelines stay in float32: whenever they were traced, whatever they call, and nothing else
with them.
"""

from __future__ import annotations

import pytest

from amp_tf.hooks.input_pipelines import is_of_pipeline
from tests.hooks import running

ON = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
ROUNDING = 1e-5  #: relative, of float32 sums of 32 products in another order
ROUNDED = (
    1e-3  #: what products of bfloat16 are off by at least, as the largest of 2,048 results near 100
)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("__inference_Dataset_map_prepare_12", True),
        ("Dataset_map_prepare_3", True),
        ("__inference_tf_data_experimental_group_by_reducer_init_func_4", True),
        ("fused_predicate", True),
        (
            "map_fusion_funcs/__inference_Dataset_map_prepare_12/__inference_Dataset_map_lambda_3",
            True,
        ),
        ("inject/seq_interleave_prefetch_rewrite___inference_Dataset_interleave_read_3", True),
        ("__inference_fused_mapping_5", False),
        ("__inference_Dataset_reduce_step_5", False),
        ("__inference_Dataset_scan_running_mean_5", True),
        ("__inference_Dataset_take_while_is_short_5", True),
        ("__inference_Dataset_scan_scan_body_5", False),
        ("__inference_reduce_loop_body_5", False),
        ("__inference_train_function_12", False),
        ("tf_graph", False),
    ],
)
def test_the_name_of_a_function_says_whether_a_pipeline_calls_it(name, is_one):
    assert is_of_pipeline(name) is is_one


@pytest.mark.parametrize("function", [[], ["map"]], ids=["no function", "map"])
def test_a_session_behind_a_one_shot_iterator_is_converted_and_its_data_is_not(function, tmp_path):
    program = str(running.PROGRAMS / "one_shot_iterator.py")
    ended = running.run([program, *function], tmp_path, ON)
    assert ended.converted > 0
    assert ended.result["error"] < ROUNDING * 100
    assert ended.warnings == []


@pytest.mark.parametrize("how", ["call", "environ", "call fused"])
def test_a_pipeline_made_before_amp_tf_was_turned_on_is_exact(how, tmp_path):
    ended = running.run(
        [str(running.PROGRAMS / "pipeline_made_before.py"), *how.split()], tmp_path, {}
    )
    result = ended.result
    assert result["before"] == result["after"] == [0, 0]
    assert result["step"] > ROUNDED
    assert ended.converted > 0


#: The second program has names that mislead, and pipelines that outlive amp_tf.
@pytest.mark.parametrize("program", ["called_by_pipelines.py", "misleading_names.py"])
def test_what_a_pipeline_computes_is_exact_and_the_same_is_rounded_elsewhere(program, tmp_path):
    ended = running.run([str(running.PROGRAMS / program)], tmp_path, ON)
    data = ended.result["data"]
    others = ended.result["program"]
    assert {name: error for name, error in data.items() if error > ROUNDING * 100} == {}
    assert {name: error for name, error in others.items() if error < ROUNDED} == {}
    assert ended.warnings == []


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_batches_that_keras_takes_from_python_code_are_exact(library, tmp_path):
    pytest.importorskip(library)
    program = str(running.PROGRAMS / "fed_by_python.py")
    ended = running.run([program, library], tmp_path, ON)
    result = ended.result
    assert {name: error for name, error in result["data"].items() if error > ROUNDING * 100} == {}
    assert {name: count for name, count in result["batches"].items() if count < 8} == {}
    assert "by number, two workers" in result["data"]
    assert result["program"] > ROUNDED
    assert ended.warnings == []


ONLY_DATA = """
import tensorflow as tf
data = tf.data.Dataset.from_tensor_slices(tf.ones((4, 8, 8)))
data = data.map(lambda x: tf.nn.relu(x @ x) @ x + 1.0)
print(sum(1 for _ in data))
"""


def test_a_program_that_runs_only_a_pipeline_is_told_so(tmp_path):
    ended = running.run(["-c", ONLY_DATA], tmp_path, ON)
    assert (
        "TensorFlow ran no graph but those of input pipelines (tf.data), which stay in float32"
        in ended.summary[6]
    )
