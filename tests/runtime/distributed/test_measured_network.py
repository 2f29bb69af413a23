"""α-β lines of messages and collectives."""

import pytest

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.runtime.distributed.measured_network import fitted_line


def test_a_line_is_fitted_by_relative_errors() -> None:
    line = AlphaBeta(2e-4, 3e-9)
    sizes = (1024, 2**16, 2**20, 2**24)
    exact = fitted_line({size: line.time_s(size) for size in sizes})
    assert exact.latency_s == pytest.approx(line.latency_s)
    assert exact.s_per_byte == pytest.approx(line.s_per_byte)
    # A large size that is 10 % off moves the latency by far less than its own error of 5 ms.
    noisy = fitted_line({size: line.time_s(size) * (1.1 if size == 2**24 else 1.0) for size in sizes})
    assert noisy.latency_s == pytest.approx(line.latency_s, rel=0.1)
    assert fitted_line({1: 1.0, 2: 0.5}).s_per_byte > 0  # never negative, never free
    with pytest.raises(InputError, match="1 sizes were timed; an α-β line needs two at least"):
        fitted_line({1: 1.0})
