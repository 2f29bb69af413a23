"""Closed forms and rounds of collectives against runs with real data, message by message."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines.costs import collective_runs as runs

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Link
from dlplacer.machines.costs import collective_rounds as rounds
from dlplacer.machines.costs import collectives
from dlplacer.machines.costs.alpha_beta import FREE, AlphaBeta

COUNTS = range(1, 18)
UNIT = AlphaBeta(1.0, 1.0)
lines = st.builds(AlphaBeta, st.floats(0, 1e-3), st.floats(1e-12, 1e-6))


def line_of(run: runs.Run) -> AlphaBeta:
    """What a run costs where every step lasts as long as its largest message: latency 1 each, 1 for a whole vector."""
    sent = [max(share for _, _, share in step) for step in run.log]
    return AlphaBeta(float(len(sent)), sum(sent))


def unrolled(found: Sequence[rounds.Round]) -> list[list[tuple[int, int, float]]]:
    return [list(each.steps) for each in found for _ in range(each.times)]


def same_log(run: runs.Run, found: Sequence[rounds.Round]) -> bool:
    def rounded(log: list[list[tuple[int, int, float]]]) -> list[Counter[tuple[int, int, float]]]:
        return [Counter((a, b, round(share, 12)) for a, b, share in step) for step in log]

    return rounded(run.log) == rounded(unrolled(found))


ALL_REDUCES: dict[str, tuple[Callable[[int], runs.Run], Callable[[int], tuple[rounds.Round, ...]]]] = {
    "ring": (runs.ring, rounds.ring_rounds),
    "tree": (runs.tree, rounds.tree_rounds),
    "halving-doubling": (runs.halving_doubling, rounds.halving_doubling_rounds),
}


@pytest.mark.parametrize("devices", COUNTS)
@pytest.mark.parametrize("name", ALL_REDUCES)
def test_an_all_reduce_sums_everything_in_the_steps_and_bytes_of_the_form(name: str, devices: int) -> None:
    run = ALL_REDUCES[name][0](devices)
    assert all(vector == run.totals() for vector in run.held)
    form = collectives.ALL_REDUCE[name](UNIT, devices)
    assert (line_of(run).latency_s, line_of(run).s_per_byte) == pytest.approx((form.latency_s, form.s_per_byte))
    assert same_log(run, ALL_REDUCES[name][1](devices))


@pytest.mark.parametrize("devices", COUNTS)
def test_reduce_scatter_and_all_gather_are_the_halves_of_the_ring(devices: int) -> None:
    run = runs.Run(devices, devices)
    runs.ring_scatter(run)
    for device in range(devices):
        block = (device + 1) % devices
        assert run.held[device][block] == run.totals()[block]
    assert same_log(run, rounds.ring_half(devices))
    half = collectives.ring_reduce_scatter(UNIT, devices)
    assert (line_of(run).latency_s, line_of(run).s_per_byte) == pytest.approx((half.latency_s, half.s_per_byte))
    assert half + collectives.ring_all_gather(UNIT, devices) == collectives.ring_all_reduce(UNIT, devices)


@pytest.mark.parametrize("devices", COUNTS)
def test_bruck_gathers_all_blocks(devices: int) -> None:
    run = runs.bruck_gather(devices)
    assert all(vector == [1000**block for block in range(devices)] for vector in run.held)
    form = collectives.doubling_all_gather(UNIT, devices)
    assert (line_of(run).latency_s, line_of(run).s_per_byte) == pytest.approx((form.latency_s, form.s_per_byte))
    assert same_log(run, rounds.doubling_gather_rounds(devices))


@pytest.mark.parametrize("devices", COUNTS)
def test_all_to_all_sends_one_part_to_everybody_else(devices: int) -> None:
    found = [
        [(a, b, share) if once == 0 else (b, a, share) for a, b, share in each.steps]
        for each in rounds.all_to_all_rounds(devices)
        for once in range(each.times)
    ]
    sent = Counter((a, b) for step in found for a, b, _ in step)
    assert sent == Counter({(a, b): 1 for a in range(devices) for b in range(devices) if a != b})
    for step in found:
        assert Counter(b for _, b, _ in step) == Counter(range(devices))
    form = collectives.pairwise_all_to_all(UNIT, devices)
    shares = [max(share for _, _, share in step) for step in found]
    assert (form.latency_s, form.s_per_byte) == pytest.approx((len(found), sum(shares)))


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (4, 1), (4, 2), (5, 3), (3, 5), (6, 6)])
def test_parameter_servers_sum_and_send_back(workers: int, servers: int) -> None:
    run = runs.servers(workers, servers)
    total = [sum(range(1, workers + 1)) * 1000**block for block in range(servers)]
    assert all(run.held[worker] == total for worker in range(workers))
    form = collectives.parameter_server(UNIT, workers, servers)
    assert (line_of(run).latency_s, line_of(run).s_per_byte) == pytest.approx((form.latency_s, form.s_per_byte))
    found = unrolled(rounds.server_rounds(workers, servers))
    assert len(found) == form.latency_s
    for step in found:
        assert max(Counter(a for a, _, _ in step).values()) == max(Counter(b for _, b, _ in step).values()) == 1
    assert Counter((a, b) for step in found for a, b, _ in step) == Counter(
        (a, b) for step in run.log for a, b, _ in step
    )


def test_lemma_3_2_is_parameter_servers_without_latency() -> None:
    # T_C = 2 S_p N_w ÷ (N_ps B_ps): 100 MB, 8 workers, 2 servers of 1 GB/s: 2 · 1e8 · 8 ÷ (2 · 1e9) = 0.8 s
    channel = AlphaBeta.of_rate(0.0, 1e9)
    assert collectives.parameter_server(channel, 8, 2).time_s(1e8) == pytest.approx(0.8)


@pytest.mark.parametrize(("groups", "size"), [(1, 1), (1, 4), (4, 1), (2, 2), (2, 4), (3, 4), (4, 3)])
def test_hierarchical_all_reduce_sums_everything(groups: int, size: int) -> None:
    run = runs.hierarchical(groups, size)
    assert all(vector == run.totals() for vector in run.held)
    form = collectives.hierarchical_all_reduce(UNIT, UNIT, groups, size)
    assert (line_of(run).latency_s, line_of(run).s_per_byte) == pytest.approx((form.latency_s, form.s_per_byte))
    places = [tuple(range(group * size, (group + 1) * size)) for group in range(groups)]
    assert same_log(run, rounds.hierarchical_rounds(places))


@settings(derandomize=True, deadline=None)
@given(lines, st.integers(1, 600))
def test_no_all_reduce_moves_fewer_bytes_than_the_ring(channel: AlphaBeta, devices: int) -> None:
    ring = collectives.ring_all_reduce(channel, devices)
    for cost in collectives.ALL_REDUCE.values():
        assert cost(channel, devices).s_per_byte >= ring.s_per_byte * (1 - 1e-12)


@settings(derandomize=True, deadline=None)
@given(lines, st.integers(1, 600), st.floats(0, 1e10))
def test_the_best_all_reduce_is_never_slower_than_any(channel: AlphaBeta, devices: int, size_bytes: float) -> None:
    _, best = collectives.best_all_reduce(channel, devices, size_bytes)
    for cost in collectives.ALL_REDUCE.values():
        assert best.time_s(size_bytes) <= cost(channel, devices).time_s(size_bytes)


def test_a_flat_hierarchy_is_a_ring() -> None:
    channel = AlphaBeta(3e-6, 1e-9)
    assert collectives.hierarchical_all_reduce(channel, FREE, 1, 8) == collectives.ring_all_reduce(channel, 8)
    assert collectives.hierarchical_all_reduce(FREE, channel, 8, 1) == collectives.ring_all_reduce(channel, 8)


def test_a_line() -> None:
    line = AlphaBeta.of_link(Link("a", "b", 10e9, 2e-6, count=2))
    assert line.time_s(20e9) == pytest.approx(1.0 + 2e-6)
    assert line.half_rate_bytes == pytest.approx(40_000)
    assert line.times(3, 0.5).time_s(20e9) == pytest.approx(1.5 + 6e-6)
    assert AlphaBeta(1.0, 0.0).half_rate_bytes == float("inf")
    assert FREE.half_rate_bytes == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AlphaBeta(-1.0, 0.0), "latency_s is -1.0; it must be finite and at least 0"),
        (lambda: AlphaBeta(0.0, float("nan")), "s_per_byte is nan; it must be finite and at least 0"),
        (lambda: AlphaBeta.of_rate(0.0, 0.0), "bytes_per_s is 0.0; it must be positive"),
        (lambda: UNIT.time_s(-1), "a message of -1 bytes; the size must be finite and at least 0"),
        (lambda: collectives.ring_all_reduce(UNIT, 0), "a collective over 0 devices; there must be at least 1"),
        (lambda: collectives.parameter_server(UNIT, 4, 0), "0 parameter servers; there must be at least 1"),
    ],
)
def test_mistakes(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
