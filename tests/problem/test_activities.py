"""Schedules in ticks performed where steps take no time."""

from dlplacer.problem.activities import Activity, ResourceUse, earliest

LINK, OTHER = 1, 2


# A tensor of no bytes crosses a link in 0.1 s and another one in none: rounded, it holds that at tick 8, behind its own
# end at 7. The op that reads it sends over the same link from tick 7 on, for 0.8 s. It cannot come first there.
def test_a_use_of_no_time_comes_before_what_waits_for_it() -> None:
    first = Activity((0, 7, 0, 0), 0.1, (), (ResourceUse(OTHER, 0, 7, 0.0, 0.1), ResourceUse(LINK, 8, 8, 0.1, 0.0)))
    reader = Activity((7, 7, 1, -1), 0.0, ((0, 0.1),))
    second = Activity((7, 87, 1, 0), 0.8, ((1, 0.0),), (ResourceUse(LINK, 7, 87, 0.0, 0.8),))
    assert earliest([first, reader, second], waits_for_memory=False) == [0.0, 0.1, 0.1]
