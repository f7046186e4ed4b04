from __future__ import annotations

import pytest

from amp_tf.painting.reasons import Reason, Rule


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_has_words_about_the_node(rule):
    assert rule.words
    assert not rule.words.endswith(".")


def test_rules_below_100_convert_and_the_others_do_not():
    assert {rule.converts for rule in Rule if rule < 100} == {True}
    assert {rule.converts for rule in Rule if rule >= 100} == {False}


def test_numbers_fit_the_byte_that_the_canvas_keeps():
    assert all(0 < rule < 256 for rule in Rule)


def test_a_reason_names_its_cause():
    assert str(Reason(Rule.AFTER_DENY, "loss/Exp")) == "it uses values of the deny-list node 'loss/Exp'"


def test_a_cause_with_braces_is_printed_as_it_is():
    assert str(Reason(Rule.AFTER_ALLOW, "{0}")) == "it directly follows the converted node '{0}'"


def test_a_reason_without_a_cause_is_a_whole_sentence():
    assert str(Reason(Rule.DENY_LIST)) == "its op is on the deny list"


def test_a_detail_stands_in_brackets():
    assert str(Reason(Rule.NO_TARGET, detail="no GPU")) == "no device of this machine is converted (no GPU)"
