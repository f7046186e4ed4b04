"""Settings, their variables, and the three formats."""

import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from amp_tf.config import (
    ALLREDUCE,
    DISABLE_VAR,
    ENABLE_VAR,
    ENV_VARS,
    GRAPH_REWRITE_VAR,
    LEVELS,
    LIST_NAMES,
    LOSS_SCALING_VAR,
    PRECISIONS,
    TARGETS,
    AmpConfig,
    Switches,
    with_settings,
)
from amp_tf.errors import ConfigError, OpListError
from amp_tf.precision import Precision
from amp_tf.values import file_of_patterns

PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
LIST_VARIABLES = [row.name for row in ENV_VARS if row.name.endswith(("_ADD", "_REMOVE"))]


def test_an_empty_variable_counts_as_unset_and_the_process_environment_is_read_by_default(
    monkeypatch,
):
    assert (
        AmpConfig.from_env({})
        == AmpConfig.from_env({row.name: "" for row in ENV_VARS})
        == AmpConfig()
    )
    monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    assert AmpConfig.from_env().precision == "bfloat16"


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        *(("AMP_TF_PRECISION", value, "precision", value) for value in PRECISIONS),
        ("AMP_TF_PRECISION", " BFloat16 ", "precision", "bfloat16"),
        ("AMP_TF_PRECISION", "FP16", "precision", "float16"),
        ("AMP_TF_PRECISION", "bf16", "precision", "bfloat16"),
        ("AMP_TF_ALLREDUCE", "bf16", "allreduce", "bfloat16"),
        *(("AMP_TF_ALLREDUCE", value, "allreduce", value) for value in ALLREDUCE),
        *((f"{PREFIX}LEVEL", value, "level", value) for value in LEVELS),
        (f"{PREFIX}LEVEL", "unsafe_force_all", "level", "UNSAFE_FORCE_ALL"),
        *(
            (f"{PREFIX}IGNORE_PERFORMANCE", text, "ignore_performance", True)
            for text in ("1", "true", "TRUE")
        ),
        *(
            (f"{PREFIX}IGNORE_PERFORMANCE", text, "ignore_performance", False)
            for text in ("0", "false", "False")
        ),
        (f"{PREFIX}LOG_PATH", "/tmp/amp", "log_path", "/tmp/amp"),
        ("AMP_TF_KEEP_FLOAT32", "^loss/, _head$,", "keep_float32", ("^loss/", "_head$")),
        ("AMP_TF_FORCE_F16", "softmax", "force_f16", ("softmax",)),
        ("AMP_TF_FOR", "Memory", "goal", "memory"),
    ],
)
def test_a_good_value_sets_its_field(name, text, field, value):
    assert AmpConfig.from_env({name: text}) == AmpConfig(**{field: value})


@pytest.mark.parametrize("name", LIST_VARIABLES)
def test_a_list_variable_takes_op_names_separated_by_commas(name):
    field = next(row.field for row in ENV_VARS if row.name == name)
    assert AmpConfig.from_env({name: "MatMul, Conv2D,,"}) == AmpConfig(
        **{field: ("MatMul", "Conv2D")}
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [("WHITELIST", "ALLOWLIST"), ("GRAYLIST", "INFERLIST"), ("BLACKLIST", "DENYLIST")],
)
@pytest.mark.parametrize("action", ["ADD", "REMOVE"])
def test_an_old_list_name_and_its_new_one_both_count(old, new, action):
    both = AmpConfig.from_env({f"{PREFIX}{old}_{action}": "A", f"{PREFIX}{new}_{action}": "B"})
    field = f"{new.removesuffix('LIST').lower()}_{action.lower()}"
    assert sorted(getattr(both, field)) == ["A", "B"]


SWITCHES = (ENABLE_VAR, GRAPH_REWRITE_VAR, LOSS_SCALING_VAR, DISABLE_VAR)


@pytest.mark.parametrize(
    ("read", "name", "value", "valid"),
    [
        (AmpConfig.from_env, "AMP_TF_PRECISION", "fp8", PRECISIONS),
        (AmpConfig.from_env, "AMP_TF_PRECISION", "float32", PRECISIONS),
        (AmpConfig.from_env, "AMP_TF_FOR", "size", ("speed", "memory")),
        (AmpConfig.from_env, f"{PREFIX}LEVEL", "unsafe_force_some", LEVELS),
        (AmpConfig.from_env, f"{PREFIX}IGNORE_PERFORMANCE", "yes", ("1", "true", "0", "false")),
        (
            AmpConfig.from_env,
            "AMP_TF_KEEP_FLOAT32",
            "loss(",
            ("regular expressions of Python's re module",),
        ),
        (
            AmpConfig.from_env,
            "AMP_TF_FORCE_F16",
            "*",
            ("regular expressions of Python's re module",),
        ),
        (AmpConfig, "precision", "half", PRECISIONS),
        (AmpConfig, "level", "default", LEVELS),
        (AmpConfig, "goal", "size", ("speed", "memory")),
        (AmpConfig, "target", "tpu", TARGETS),
        (AmpConfig, "ignore_performance", "0", ("True", "False")),
        (AmpConfig, "ignore_performance", 1, ("True", "False")),
        *(
            (Switches.from_env, name, value, ("1", "true", "0", "false"))
            for name in SWITCHES
            for value in ("2", "on")
        ),
    ],
)
def test_a_bad_value_is_refused_with_its_name_the_value_and_all_valid_values(
    read, name, value, valid
):
    with pytest.raises(ConfigError) as caught:
        read(**{name: value}) if read is AmpConfig else read({name: value})
    message = str(caught.value)
    where = f"AmpConfig.{name}" if read is AmpConfig else name
    assert message.startswith(f"{where}: {value!r} is not a ")
    assert message.endswith(f"Valid values: {', '.join(valid)}.")


def test_all_bad_values_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        AmpConfig.from_env(
            {"AMP_TF_PRECISION": "fp8", f"{PREFIX}LEVEL": "much", "AMP_TF_KEEP_FLOAT32": "loss"}
        )
    assert str(caught.value) == (
        f"AMP_TF_PRECISION: 'fp8' is not a valid value. Valid values: {', '.join(PRECISIONS)}. "
        f"{PREFIX}LEVEL: 'much' "
        f"is not a valid value. Valid values: {', '.join(LEVELS)}."
    )


@pytest.mark.parametrize("field", ["allow_add", "deny_remove", "keep_float32"])
def test_names_must_be_a_row_of_strings(field):
    for value in (("MatMul", 1), None, b"MatMul", 3):
        with pytest.raises(
            ConfigError,
            match=rf"^AmpConfig\.{field}: .* is not a list of strings\. Write \('A', 'B'\)\.$",
        ):
            AmpConfig(**{field: value})
    with pytest.raises(
        ConfigError, match=r": 'MatMul' is one string, not several\. Write \('MatMul',\)\.$"
    ):
        AmpConfig(**{field: "MatMul"})


@pytest.mark.parametrize(
    "names", [["B", "A"], ("B", "A"), {"A", "B"}, {"B": 1, "A": 2}.keys(), iter(["B", "A"])]
)
def test_any_row_of_names_is_taken(names):
    config = AmpConfig(keep_float32=names)
    assert sorted(config.keep_float32) == ["A", "B"]
    assert hash(config) == hash(AmpConfig(keep_float32=config.keep_float32))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.precision = "float16"
    assert AmpConfig(deny_add={"B", "A"}).deny_add == ("A", "B")  # a set has no order of its own


@pytest.mark.parametrize(
    "dtype", [tf.bfloat16, tf.bfloat16.as_numpy_dtype, np.dtype("bfloat16"), Precision.BFLOAT16]
)
def test_a_dtype_is_taken_for_its_name(dtype):
    assert AmpConfig(precision=dtype, allreduce=dtype) == AmpConfig(
        precision="bfloat16", allreduce="bfloat16"
    )
    with pytest.raises(ConfigError, match=r"^AmpConfig\.precision: 'float32' is not a valid value"):
        AmpConfig(precision=tf.float32)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(AmpConfig)])
def test_every_field_is_described_and_refuses_what_it_is_not(field):
    described = rf"^ {{8}}(\w+,\s+)*{field}(,\s+\w+)*:"  # of several at once, as lists are
    assert re.search(described, AmpConfig.__doc__, re.MULTILINE)
    with pytest.raises(ConfigError, match=rf"^AmpConfig\.{field}: "):
        AmpConfig(**{field: object()})


def test_a_folder_is_a_path_or_nothing(tmp_path):
    assert AmpConfig(log_path=tmp_path).log_path == str(tmp_path)
    for value in (1, b"folder", True):
        with pytest.raises(
            ConfigError,
            match=r"^AmpConfig\.log_path: .* is not a path\. Valid values: a path, None",
        ):
            AmpConfig(log_path=value)


def test_an_op_that_is_to_join_two_lists_is_refused_with_both_settings_and_what_to_do():
    with pytest.raises(OpListError) as caught:
        AmpConfig.from_env({f"{PREFIX}ALLOWLIST_ADD": "Relu", f"{PREFIX}BLACKLIST_ADD": "Relu"})
    assert str(caught.value) == (
        f"AmpConfig.allow_add ({PREFIX}ALLOWLIST_ADD) and AmpConfig.deny_add "
        f"({PREFIX}DENYLIST_ADD): op 'Relu' is to "
        "join the allow and the deny list. Name 'Relu' in one of them alone: it then leaves the "
        "list that it is "
        "on."
    )
    AmpConfig(allow_add=("Relu",), deny_add=("Relu",), deny_remove=("Relu",))  # which leaves one


@pytest.mark.parametrize(
    "pattern", ["layer:", "layer:/head", "layer:encoder//attention", "layer:head/"]
)
def test_a_layers_pattern_without_a_name_is_refused_with_an_example(pattern):
    with pytest.raises(ConfigError) as caught:
        AmpConfig(keep_float32=(pattern,))
    assert str(caught.value) == (
        f"AmpConfig.keep_float32: {pattern!r} names no layer. Write layer: and a layer's path as "
        "Keras has it "
        "(layer.path), such as layer:encoder/block_3."
    )


def test_each_name_of_a_layers_pattern_is_a_regular_expression():
    text = r"layer:encoder/block_\d{1,2}/attention, layer:head"
    found = AmpConfig.from_env({"AMP_TF_FORCE_F16": text}).force_f16
    assert found == (r"layer:encoder/block_\d{1,2}/attention", "layer:head")
    with pytest.raises(
        ConfigError, match=r"^AMP_TF_FORCE_F16: 'block_\(' is not a regular expression \("
    ):
        AmpConfig.from_env({"AMP_TF_FORCE_F16": "layer:encoder/block_("})
    for field in ("keep_float32", "force_f16"):
        with pytest.raises(
            ConfigError, match=rf"^AmpConfig\.{field}: '\[' is not a regular expression \("
        ):
            AmpConfig(**{field: ("[",)})


def test_every_variable_is_one_row_with_words_for_people_and_all_lists_have_theirs():
    assert len({row.name for row in ENV_VARS}) == len(ENV_VARS)
    assert all(row.kind.values and row.meaning for row in ENV_VARS)
    assert {field.name for field in dataclasses.fields(AmpConfig)} - {"target"} == {
        row.field for row in ENV_VARS
    } - {None}
    fields = {row.field for row in ENV_VARS if row.name in LIST_VARIABLES}
    assert fields == {f"{name}_{action}" for name in LIST_NAMES for action in ("add", "remove")}


#: ENABLE, GRAPH_REWRITE and LOSS_SCALING, with - for unset and _ for empty, and what is on.
SWITCHED = """
    - - -
    1 - -: graph_rewrite loss_scaling
    0 - -
    _ - -
    - 1 -: graph_rewrite
    - - 1: loss_scaling
    1 0 -: loss_scaling
    0 1 -: graph_rewrite
    1 _ -: graph_rewrite loss_scaling
    1 - 0: graph_rewrite
    1 - _: graph_rewrite
    0 - 1: loss_scaling
    true - True: graph_rewrite loss_scaling
"""


@pytest.mark.parametrize("row", SWITCHED.strip().splitlines())
def test_switches_follow_the_precedence_of_ngc(row):
    given, _, on = row.partition(":")
    environ = {
        name: value.replace("_", "")
        for name, value in zip(SWITCHES, given.split(), strict=False)
        if value != "-"
    }
    switches = Switches.from_env(environ)
    assert switches == Switches(**dict.fromkeys(on.split(), True))
    assert switches.any == bool(on)
    assert Switches.from_env({**environ, DISABLE_VAR: "0"}) == switches
    assert Switches.from_env({**environ, DISABLE_VAR: "1"}) == Switches()


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("a,b", ("a", "b")),
        ("conv_[0-9]{1,2}, dense", ("conv_[0-9]{1,2}", "dense")),
        ("(a,b),[,]c", ("(a,b)", "[,]c")),
        (r"a\(,b", (r"a\(", "b")),
        (r"a\\(b,c),d", (r"a\\(b,c)", "d")),
        ("[(],b", ("[(]", "b")),
        ("([)],a),b", ("([)],a)", "b")),
        ("[]{],[^](],b", ("[]{]", "[^](]", "b")),
        (" , ", ()),
    ],
)
def test_a_comma_inside_brackets_belongs_to_the_pattern(text, patterns):
    assert AmpConfig.from_env({"AMP_TF_KEEP_FLOAT32": text}).keep_float32 == patterns


PATTERNS = """
# amp-tf tune, by hand since
layer:encoder/block_3

    node:net/add_1 \r
^loss/(a|b),c$
"""
READ = ("layer:encoder/block_3", "node:net/add_1", "^loss/(a|b),c$")


def test_a_file_of_patterns_is_read_where_settings_are_and_never_by_the_constructor(tmp_path):
    file = tmp_path / "keep, these (now).txt"
    file.write_text(PATTERNS)
    quoted = file_of_patterns(file)
    environ = {"AMP_TF_KEEP_FLOAT32": f"{quoted},layer:head", "AMP_TF_FORCE_F16": f"head, {quoted}"}
    from_environ = AmpConfig.from_env(environ)
    assert from_environ == AmpConfig(keep_float32=(*READ, "layer:head"), force_f16=("head", *READ))
    for given, expected in (
        (f"@{file}", READ),
        (["a", f"@{file}", "b"], ("a", *READ, "b")),
        ({"a", f"@{file}"}, (*READ, "a")),
        (["a"], ("a",)),
    ):
        found = with_settings(AmpConfig(), {"keep_float32": given}, where="enable")
        assert found == AmpConfig(keep_float32=expected)
    file.unlink()
    assert from_environ.keep_float32[:3] == READ
    with pytest.raises(
        ConfigError, match=r"^AmpConfig\.keep_float32: '@a' names a file of patterns, which is not"
    ):
        AmpConfig(keep_float32=("@a",))


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        (b"a\n# (\nb(\n", ", line 3", "'b(' is not a regular expression"),
        (b"a\n\x1b[1m\n", ", line 2", r"'\x1b[1m' holds a character that no name has"),
        (b"layer:\n", ", line 1", "'layer:' names no layer"),
        (b"node: \n", ", line 1", "'node:' names no node"),
        (
            b"a\nlayer:a, layer:b\n",
            ", line 2",
            "'layer:a, layer:b' holds more than one pattern, or a comment. Write",
        ),
        (
            b"layer:a,layer:b\n",
            ", line 1",
            "'layer:a,layer:b' holds more than one pattern, or a comment",
        ),
        (
            b"layer:a  # why\n",
            ", line 1",
            "'layer:a  # why' holds more than one pattern, or a comment",
        ),
        (
            b"@other.txt\n",
            ", line 1",
            "'@other.txt' names a file of patterns, which is not read here",
        ),
        (b"\xff\n", "", "it cannot be read (it is not text in UTF-8)"),
        (b"#" * (2**20 + 1), "", "it cannot be read (it has 1,048,577 bytes or more"),
    ],
)
def test_an_error_in_a_file_of_patterns_names_the_file_and_the_line(tmp_path, content, where, what):
    file = tmp_path / "keep.txt"
    file.write_bytes(content)
    with pytest.raises(
        ConfigError, match=f"^AMP_TF_KEEP_FLOAT32: {re.escape(f'{file}{where}: {what}')}"
    ):
        AmpConfig.from_env({"AMP_TF_KEEP_FLOAT32": f"@{file}"})


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("", "@ names no file"),
        ("/dev/zero", "/dev/zero: it cannot be read (it is a device, not a "),
    ],
)
def test_a_file_of_patterns_that_cannot_be_read_is_refused_with_what_to_do(path, what):
    with pytest.raises(ConfigError, match=re.escape(what)) as caught:
        AmpConfig.from_env({"AMP_TF_KEEP_FLOAT32": f"@{path}"})
    assert ". Name a text file" in str(caught.value)


def test_names_numbers_and_limits_are_those_of_tensorflow_and_of_the_formats():
    for precision in Precision:
        info = ml_dtypes.finfo(tf.as_dtype(precision.value).as_numpy_dtype)
        assert tf.as_dtype(precision.value).as_datatype_enum == precision.data_type
        assert precision.max_finite == float(info.max)
        assert precision.is_f16 is (precision.value != "float32")
