import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling.schedule import (
    DynamicScale,
    FixedScale,
    NoScale,
    State,
    build_schedule,
    usable_scale,
)


def walk(schedule, trace):
    states = [schedule.initial_state()]
    for is_finite in trace:
        after = schedule.after_finite if is_finite else schedule.after_nonfinite
        states.append(after(states[-1]))
    return states


def trailing(trace, value):
    """Counts how often a value stands at the end of a trace."""
    return len(list(itertools.takewhile(lambda found: found is value, reversed(trace))))


def oracle(trace, *, start, steps, growth, backoff, hysteresis, floor, ceiling):
    """The rules again, from the whole history instead of a state: a second opinion that shares no
    code.
    """
    scale = np.float32(start)
    scales = [scale]
    changed_at = 0
    since = 0
    owed = 0
    for now in range(1, len(trace) + 1):
        new = scale
        run_of_bad = trailing(trace[:now], False)
        if trace[now - 1] and owed:
            owed -= 1
            since = now
            new = min(np.float32(scale * np.float32(1 / backoff)), np.float32(ceiling))
        elif trace[now - 1] and trailing(trace[since:now], True) == steps:
            since = now
            with np.errstate(over="ignore"):
                new = min(np.float32(scale * np.float32(growth)), np.float32(ceiling))
        elif run_of_bad >= hysteresis:
            times = {0: 1, 1: 1, 2: 4, 3: 16}.get(run_of_bad - hysteresis, 64)
            new = max(np.float32(scale * np.float32(backoff**times)), np.float32(floor))
            if new != scale:
                owed = owed + times if times > 1 else 0
        if new != scale:
            changed_at = now
        scale = new
        scales.append(scale)
    return scales, changed_at


powers = st.integers(-24, 120).map(lambda n: 2.0**n)


@st.composite
def machines(draw):
    floor, start, ceiling = sorted((draw(powers), draw(powers), draw(powers)))
    return {
        "start": start,
        "floor": floor,
        "ceiling": ceiling,
        "steps": draw(st.integers(1, 6)),
        "growth": draw(st.sampled_from([2.0, 4.0, 1.5, 16.0])),
        "backoff": draw(st.sampled_from([0.5, 0.25, 0.75])),
        "hysteresis": draw(st.integers(1, 4)),
    }


@settings(max_examples=2_000, deadline=None)
@given(machines(), st.lists(st.booleans(), max_size=40))
def test_case_04_05_and_10_two_thousand_random_traces_equal_an_independent_oracle(machine, trace):
    names = ("start", "steps", "growth", "backoff", "hysteresis", "floor", "ceiling")
    schedule = DynamicScale(*(machine[name] for name in names))
    scales, changed_at = oracle(trace, **machine)
    states = walk(schedule, trace)
    assert [np.float32(s.scale) for s in states] == scales
    last = states[-1]
    assert last.skipped == trace.count(False)
    assert last.steps == len(trace)
    assert last.last_change == changed_at
    assert last.skipped_in_row == trailing(trace, False)
    assert machine["floor"] <= last.scale <= machine["ceiling"]


def test_case_06_after_300_overflows_the_scale_is_at_its_floor_and_recovers():
    states = walk(build_schedule(dynamic_growth_steps=10), [False] * 300 + [True] * 10)
    scales = [state.scale for state in states[300:]]
    assert scales == [2.0 ** (n - 24) for n in range(11)]


def find(schedule, needed):
    """(skipped steps, all steps) until a scale is found above which gradients overflow, and the
    scale.
    """
    state = schedule.initial_state()
    found = (0, 0)
    for _ in range(100):
        if state.scale <= needed:
            state = schedule.after_finite(state)
        else:
            state = schedule.after_nonfinite(state)
            found = (state.skipped, state.steps)
    return found, state.scale


@pytest.mark.parametrize("start", [15, 30])
@pytest.mark.parametrize("needed", range(-24, 15))
def test_any_scale_is_found_in_at_most_six_skipped_steps(start, needed):
    (skipped, steps), scale = find(build_schedule(2.0**start, hysteresis=1), 2.0**needed)
    assert scale == 2.0**needed
    assert skipped <= 6
    assert steps <= 70


def test_where_the_loss_itself_is_nonfinite_the_scale_is_not_searched_for():
    schedule = build_schedule()
    state = schedule.initial_state()
    for _ in range(6):
        state = schedule.after_nonfinite(state, is_loss_nonfinite=True)
    assert state.scale == 2.0**9
    assert state.good_steps == 0


def test_case_07_the_scale_stays_finite_from_1e38_with_factor_16():
    schedule = build_schedule(1e38, 1, growth_factor=16.0)
    states = walk(schedule, [True] * 50)
    assert {float(s.scale) for s in states[1:]} == {2.0**127}
    assert schedule.after_nonfinite(states[-1]).scale == 2.0**126


def test_case_11_fixed_and_disabled_schedules_never_move():
    assert {float(state.scale) for state in walk(FixedScale(8.0), [True, False] * 50)} == {8.0}
    assert walk(FixedScale(8.0), [False, True, False])[-1].skipped == 2
    assert walk(NoScale(), [True] * 50)[-1] == State(scale=1.0, steps=50)


def test_settings_build_the_schedule_they_describe():
    assert build_schedule(enabled=False) == NoScale()
    assert build_schedule(4.0, dynamic=False) == FixedScale(4.0)
    assert build_schedule(4.0, 5, hysteresis=3) == DynamicScale(4.0, 5, hysteresis=3)


@pytest.mark.parametrize(
    ("setting", "value", "valid"),
    [
        ("initial_scale", 0.0, "5.96046e-08 to 1.70141e+38"),
        ("initial_scale", float("nan"), "5.96046e-08 to 1.70141e+38"),
        ("initial_scale", "dynamic", "5.96046e-08 to 1.70141e+38"),
        ("dynamic_growth_steps", 0, "integers from 1"),
        ("dynamic_growth_steps", 2.5, "integers from 1"),
        ("hysteresis", 0, "integers from 1"),
        ("growth_factor", 1.0, "above 1"),
        ("growth_factor", float("inf"), "above 1"),
        ("backoff_factor", 1.0, "below 1"),
        ("backoff_factor", 0.0, "above 0"),
        ("min_scale", 0.0, "1.17549e-38"),
        ("max_scale", float("inf"), "1.70141e+38"),
    ],
)
def test_a_bad_setting_is_named_with_its_value_and_the_valid_ones(setting, value, valid):
    with pytest.raises(ConfigError) as error:
        build_schedule(**{setting: value})
    text = str(error.value)
    assert f"loss scaling, {setting}" in text
    assert repr(value) in text
    assert valid in text


def test_a_scale_that_was_set_above_the_ceiling_comes_back_to_it():
    schedule = build_schedule(8.0, max_scale=16.0)
    assert schedule.after_nonfinite(State(scale=float("inf"))).scale == 16.0
    assert schedule.after_nonfinite(State(scale=24.0)).scale == 12.0


def test_a_collapsed_scale_of_a_file_is_replaced_by_the_first_one():
    schedule = build_schedule(8.0)
    scales = (0.0, float("inf"), float("nan"), 2.0**-30)
    found = [usable_scale(scale, schedule) for scale in scales]
    assert found == [8.0, 8.0, 8.0, 2.0**-30]


def test_numbers_of_numpy_are_numbers():
    others = {"max_scale": np.float64(64), "hysteresis": np.int32(2)}
    schedule = build_schedule(np.float32(8), np.int64(5), **others)
    assert schedule == DynamicScale(8.0, 5, max_scale=64.0, hysteresis=2)
    assert type(schedule.initial_scale) is float
    assert type(schedule.growth_steps) is type(schedule.hysteresis) is int
    assert build_schedule(np.float16(8), dynamic=False) == FixedScale(8.0)
