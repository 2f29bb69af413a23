"""The specification: right plans pass, and for every rule there are plans that break it and nothing else."""

from dataclasses import replace

import pytest
from check import plans
from check.broken import CONTENDED, CROSSING, TRAINED
from check.broken_schedules import PLACED, TIMED
from check.broken_transfers import COUNTED, ON_THE_WAY
from check.plans import changed, with_op

from dlplacer.check import RULES, check_plan, violations
from dlplacer.core.errors import CheckError

BROKEN = PLACED | TIMED | ON_THE_WAY | COUNTED


@pytest.mark.parametrize("name", plans.RIGHT)
def test_right_plans_pass(name: str) -> None:
    assert violations(plans.RIGHT[name]) == ()
    check_plan(plans.RIGHT[name])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_reported_by_its_name(name: str) -> None:
    case = BROKEN[name]
    found = violations(case.plan)
    assert {violation.rule for violation in found} == {case.name, *case.also}
    assert case.name in {violation.rule for violation in case.rule(case.plan)}


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in PLACED and not BROKEN[name].also])
def test_no_other_rule_reports_it(name: str) -> None:
    case = BROKEN[name]
    assert [rule for rule in RULES if list(rule(case.plan))] == [case.rule]


def test_every_op_inside_a_long_one_is_reported() -> None:
    assert len(violations(BROKEN["op inside one that is not its neighbour"].plan)) == 2


def test_every_rule_is_broken_by_some_plan() -> None:
    assert {case.rule for case in BROKEN.values()} == set(RULES)


def test_devices_may_be_listed_in_any_order() -> None:
    for plan in map(plans.RIGHT.__getitem__, plans.RIGHT):
        by_device = sorted(plan.ops, key=lambda entry: entry.device, reverse=True)
        assert violations(replace(plan, ops=tuple(by_device))) == ()


def test_check_raises_with_every_violation() -> None:
    wrong = replace(changed(CROSSING, "y", end_s=9.0), lower_bound_s=10.0, transfers=())
    with pytest.raises(CheckError, match=r"^the plan breaks the rules:\n  duration: op 'y' lasts 4 s") as caught:
        check_plan(wrong)
    assert caught.value.violations == tuple(map(str, violations(wrong)))
    assert {line.partition(":")[0] for line in caught.value.violations} == {
        "duration",
        "eq. 8 transfers",
        "lower bound",
        "gap",
    }


def test_what_is_placed_nowhere_is_all_that_is_reported() -> None:
    wrong = replace(changed(CROSSING, "y", device="z"), makespan_s=77.0, transfers=())
    assert {violation.rule for violation in violations(wrong)} == {"eq. 7 placement"}


def test_phases_that_are_not_given_count_as_forward() -> None:
    late = with_op(TRAINED, "h", phase=None)
    assert violations(late) == ()
    assert {violation.rule for violation in violations(changed(late, "g", start_s=2.0, end_s=3.0))} == {
        "barrier at the loss"
    }


def test_without_the_barrier_backward_ops_may_start_early() -> None:
    early = changed(TRAINED, "g", start_s=2.0, end_s=3.0)
    assert violations(replace(early, options=replace(early.options, step="joint"))) == ()


def test_without_contention_transfers_may_overlap() -> None:
    together = changed(CONTENDED, transfer=1, start_s=2.0, end_s=4.0)
    assert violations(replace(together, options=replace(together.options, contention="none"))) == ()
