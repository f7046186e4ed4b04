"""Settings, their variables, and the three formats."""

import ast
import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from amp_tf.config import (
    DISABLE_VAR,
    ENABLE_VAR,
    ENV_VARS,
    GRAPH_REWRITE_VAR,
    LEVELS,
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


def test_an_empty_variable_counts_as_unset_and_the_process_environment_is_read_by_default(
    monkeypatch,
):
    assert AmpConfig.from_env({}) == AmpConfig()
    assert AmpConfig.from_env({row.name: "" for row in ENV_VARS}) == AmpConfig()
    monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    assert AmpConfig.from_env().precision == "bfloat16"


#: Variables with a text, and the value that it sets; … is the prefix.
GOOD_VALUES = """
    AMP_TF_PRECISION=auto: "auto"
    AMP_TF_PRECISION= BFloat16 : "bfloat16"
    AMP_TF_PRECISION=FP16: "float16"
    AMP_TF_PRECISION=bf16: "bfloat16"
    AMP_TF_ALLREDUCE=bf16: "bfloat16"
    AMP_TF_ALLREDUCE=float32: "float32"
    …LEVEL=TREAT_INFER_AS_DENY: "TREAT_INFER_AS_DENY"
    …LEVEL=unsafe_force_all: "UNSAFE_FORCE_ALL"
    …IGNORE_PERFORMANCE=TRUE: True
    …IGNORE_PERFORMANCE=1: True
    …IGNORE_PERFORMANCE=False: False
    …IGNORE_PERFORMANCE=0: False
    …LOG_PATH=/tmp/amp: "/tmp/amp"
    AMP_TF_KEEP_FLOAT32=^loss/, _head$,: ("^loss/", "_head$")
    AMP_TF_FORCE_F16=softmax: ("softmax",)
    AMP_TF_FOR=Memory: "memory"
    …ALLOWLIST_ADD=MatMul, Conv2D,,: ("MatMul", "Conv2D")
    …WHITELIST_ADD=MatMul: ("MatMul",)
    …GRAYLIST_REMOVE=Relu: ("Relu",)
    …BLACKLIST_ADD=Exp: ("Exp",)
"""


@pytest.mark.parametrize("row", GOOD_VALUES.strip().splitlines())
def test_a_good_value_sets_its_field(row):
    setting, _, value = row.strip().partition(": ")
    name, _, text = setting.replace("…", PREFIX).partition("=")
    (field,) = (row.field for row in ENV_VARS if row.name == name)
    expected = AmpConfig(**{field: ast.literal_eval(value)})
    assert AmpConfig.from_env({name: text}) == expected


def test_an_old_list_name_and_its_new_one_both_count():
    both = AmpConfig.from_env({f"{PREFIX}BLACKLIST_ADD": "A", f"{PREFIX}DENYLIST_ADD": "B"})
    assert sorted(both.deny_add) == ["A", "B"]


PATTERN = ("regular expressions of Python's re module",)
FLAG = ("1", "true", "0", "false")


def check_refused(error, where, value, valid):
    message = str(error.value)
    assert message.startswith(f"{where}: {value!r} is not a ")
    assert message.endswith(f"Valid values: {', '.join(valid)}.")


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("AMP_TF_PRECISION", "fp8", PRECISIONS),
        ("AMP_TF_PRECISION", "float32", PRECISIONS),
        ("AMP_TF_FOR", "size", ("speed", "memory")),
        (f"{PREFIX}LEVEL", "unsafe_force_some", LEVELS),
        (f"{PREFIX}IGNORE_PERFORMANCE", "yes", FLAG),
        ("AMP_TF_KEEP_FLOAT32", "loss(", PATTERN),
        ("AMP_TF_FORCE_F16", "*", PATTERN),
    ],
)
def test_a_bad_variable_is_refused_with_its_name_the_value_and_all_valid_values(name, value, valid):
    with pytest.raises(ConfigError) as error:
        AmpConfig.from_env({name: value})
    check_refused(error, name, value, valid)


@pytest.mark.parametrize(
    ("field", "value", "valid"),
    [
        ("precision", "half", PRECISIONS),
        ("level", "default", LEVELS),
        ("goal", "size", ("speed", "memory")),
        ("target", "tpu", TARGETS),
        ("ignore_performance", "0", ("True", "False")),
        ("ignore_performance", 1, ("True", "False")),
    ],
)
def test_so_is_a_bad_setting(field, value, valid):
    with pytest.raises(ConfigError) as error:
        AmpConfig(**{field: value})
    check_refused(error, f"AmpConfig.{field}", value, valid)


SWITCHES = (ENABLE_VAR, GRAPH_REWRITE_VAR, LOSS_SCALING_VAR, DISABLE_VAR)


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", ["2", "on"])
def test_and_a_bad_switch(name, value):
    with pytest.raises(ConfigError) as error:
        Switches.from_env({name: value})
    check_refused(error, name, value, FLAG)


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
@pytest.mark.parametrize("value", [("MatMul", 1), None, b"MatMul", 3])
def test_names_must_be_a_row_of_strings(field, value):
    told = rf"^AmpConfig\.{field}: .* is not a list of strings\. Write \('A', 'B'\)\.$"
    with pytest.raises(ConfigError, match=told):
        AmpConfig(**{field: value})


def test_one_string_is_no_row_of_names():
    told = r": 'MatMul' is one string, not several\. Write \('MatMul',\)\.$"
    with pytest.raises(ConfigError, match=told):
        AmpConfig(allow_add="MatMul")


@pytest.mark.parametrize(
    "names", [["B", "A"], ("B", "A"), {"A", "B"}, {"B": 1, "A": 2}.keys(), iter(["B", "A"])]
)
def test_any_row_of_names_is_taken(names):
    config = AmpConfig(keep_float32=names)
    assert sorted(config.keep_float32) == ["A", "B"]
    assert hash(config) == hash(AmpConfig(keep_float32=config.keep_float32))


def test_a_configuration_is_frozen_and_a_set_which_has_no_order_is_sorted():
    config = AmpConfig(deny_add={"B", "A"})
    assert config.deny_add == ("A", "B")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.precision = "float16"


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
    told = r"^AMP_TF_FORCE_F16: 'block_\(' is not a regular expression \("
    with pytest.raises(ConfigError, match=told):
        AmpConfig.from_env({"AMP_TF_FORCE_F16": "layer:encoder/block_("})
    told = r"^AmpConfig\.keep_float32: '\[' is not a regular expression \("
    with pytest.raises(ConfigError, match=told):
        AmpConfig(keep_float32=("[",))


def test_every_variable_is_one_row_with_words_for_people_and_all_fields_have_theirs():
    names = [row.name for row in ENV_VARS]
    assert len(set(names)) == len(names)
    fields = {"target"}
    for row in ENV_VARS:
        assert row.kind.values
        assert row.meaning
        if row.field:
            fields.add(row.field)
    assert fields == {field.name for field in dataclasses.fields(AmpConfig)}


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
    environ = {}
    for name, value in zip(SWITCHES, given.split(), strict=False):
        if value != "-":
            environ[name] = value.replace("_", "")
    switches = Switches.from_env(environ)
    assert switches == Switches(**dict.fromkeys(on.split(), True))
    assert switches.any == bool(on)
    assert Switches.from_env({**environ, DISABLE_VAR: "0"}) == switches
    assert Switches.from_env({**environ, DISABLE_VAR: "1"}) == Switches()


#: A text, and its patterns with blanks between them.
COMMAS = r"""
    a,b: a b
    conv_[0-9]{1,2}, dense: conv_[0-9]{1,2} dense
    (a,b),[,]c: (a,b) [,]c
    a\(,b: a\( b
    a\\(b,c),d: a\\(b,c) d
    [(],b: [(] b
    ([)],a),b: ([)],a) b
    []{],[^](],b: []{] [^](] b
    ,:
"""


@pytest.mark.parametrize("row", COMMAS.strip().splitlines())
def test_a_comma_inside_brackets_belongs_to_the_pattern(row):
    text, _, patterns = row.strip().partition(":")
    found = AmpConfig.from_env({"AMP_TF_KEEP_FLOAT32": text}).keep_float32
    assert found == tuple(patterns.split())


PATTERNS = """
# amp-tf tune, by hand since
layer:encoder/block_3

    node:net/add_1 \r
^loss/(a|b),c$
"""
READ = ("layer:encoder/block_3", "node:net/add_1", "^loss/(a|b),c$")


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "keep, these (now).txt"
    file.write_text(PATTERNS)
    return file


def test_a_file_of_patterns_is_read_where_settings_are_and_never_by_the_constructor(file):
    quoted = file_of_patterns(file)
    environ = {"AMP_TF_KEEP_FLOAT32": f"{quoted},layer:head", "AMP_TF_FORCE_F16": f"head, {quoted}"}
    found = AmpConfig.from_env(environ)
    file.unlink()
    assert found.keep_float32 == (*READ, "layer:head")
    assert found.force_f16 == ("head", *READ)
    told = r"^AmpConfig\.keep_float32: '@a' names a file of patterns, which is not"
    with pytest.raises(ConfigError, match=told):
        AmpConfig(keep_float32=("@a",))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("@{}", READ),
        (["a", "@{}", "b"], ("a", *READ, "b")),
        ({"a", "@{}"}, (*READ, "a")),
        (["a"], ("a",)),
    ],
)
def test_a_setting_may_name_a_file_of_patterns(given, expected, file):
    if isinstance(given, str):
        named = given.format(file)
    else:
        named = type(given)(pattern.format(file) for pattern in given)
    found = with_settings(AmpConfig(), {"keep_float32": named}, where="enable")
    assert found == AmpConfig(keep_float32=expected)


SEVERAL = "holds more than one pattern, or a comment"


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        (b"a\n# (\nb(\n", ", line 3", "'b(' is not a regular expression"),
        (b"a\n\x1b[1m\n", ", line 2", r"'\x1b[1m' holds a character that no name has"),
        (b"layer:\n", ", line 1", "'layer:' names no layer"),
        (b"node: \n", ", line 1", "'node:' names no node"),
        (b"a\nlayer:a, layer:b\n", ", line 2", f"'layer:a, layer:b' {SEVERAL}. Write"),
        (b"layer:a  # why\n", ", line 1", f"'layer:a  # why' {SEVERAL}"),
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
    told = re.escape(f"AMP_TF_KEEP_FLOAT32: {file}{where}: {what}")
    with pytest.raises(ConfigError, match=f"^{told}"):
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
