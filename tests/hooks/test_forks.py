"""A process forked from one that imported TensorFlow and ran no graph yet converts as its parent does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hooks import running

PROGRAM = """
import json, multiprocessing, os, sys
import tensorflow as tf

def train():
    f = tf.function(lambda x: tf.nn.relu(x @ x) @ x)
    f(tf.ones((32, 32)))
    import amp_tf
    print(json.dumps([graph.casts for graph in amp_tf.report().graphs]), flush=True)

def by_fork():
    child = os.fork()
    if child == 0:
        train()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def by_multiprocessing():
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
    assert child.exitcode == 0

{way}()
"""


@pytest.mark.parametrize("way", ["by_fork", "by_multiprocessing"])
def test_a_child_of_a_process_that_only_imported_tensorflow_converts(way: str, site_folder: Path) -> None:
    variables = {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"}
    ended = running.run(["-c", PROGRAM.replace("{way}", way)], site_folder, variables, fresh="it forks")
    assert ended.status == 0, ended.err
    (casts,) = json.loads(ended.out)
    assert casts > 0
    assert ended.summary[1] == "0"  # the parent's line alone
