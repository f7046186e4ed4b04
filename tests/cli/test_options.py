"""Command-line options on top of the environment's settings."""

import argparse

import pytest

from amp_tf.cli.options import add_config_options, hardware_for, read_config
from amp_tf.config import AmpConfig
from amp_tf.errors import ConfigError


def _config(*arguments):
    parser = argparse.ArgumentParser()
    add_config_options(parser)
    return read_config(parser.parse_args(arguments))


def test_without_options_the_environment_counts(monkeypatch):
    monkeypatch.setenv("AMP_TF_PRECISION", "float16")
    monkeypatch.setenv("AMP_TF_KEEP_FLOAT32", "a,b")
    assert _config() == AmpConfig(precision="float16", keep_float32=("a", "b"))


def test_options_win_and_lists_add_up(monkeypatch):
    monkeypatch.setenv("AMP_TF_PRECISION", "float16")
    monkeypatch.setenv("AMP_TF_KEEP_FLOAT32", "a")
    config = _config(
        "--precision", "bfloat16", "--keep-float32", "b{1,2},c", "--deny-add", "Relu,Tanh", "--target", "gpu"
    )
    assert config == AmpConfig(
        precision="bfloat16", keep_float32=("a", "b{1,2}", "c"), deny_add=("Relu", "Tanh"), target="gpu"
    )


def test_short_names_of_the_types_are_taken():
    assert _config("--precision", "bf16") == AmpConfig(precision="bfloat16")


def test_the_goal_is_an_option_too():
    assert _config("--goal", "memory").goal == "memory"


def test_a_bad_pattern_is_refused():
    with pytest.raises(ConfigError, match="is not a regular expression"):
        _config("--force-f16", "(")


def test_a_gpu_target_does_not_need_a_gpu():
    assert hardware_for(AmpConfig(target="gpu")).gpu_has_f16
    assert not hardware_for(AmpConfig(target="cpu")).has_gpu
