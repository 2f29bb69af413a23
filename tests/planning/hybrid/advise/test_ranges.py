"""Numbers of any size are answered or refused by name."""

import math
import sys

import pytest

from dlplacer.cli.main import main
from dlplacer.core.errors import InputError
from dlplacer.planning.hybrid.advise.servers import transfer_s
from dlplacer.planning.hybrid.scaling_efficiency import SerialOverhead

_MANY = "9" * 400
_LARGEST = sys.float_info.max


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"advise gpus --overhead 0.1 --gpus {_MANY}", "10^399 workers or more; there may be at most 1e+18"),
        (f"advise gpus --efficiency 0.8 --gpus {_MANY}", "10^399 GPUs or more; give at most 1e+18"),
        ("advise gpus --overhead 0 --speedup 1e300", "a speedup of 1e+300; it must be at least 1, and at most 1e+18"),
        (f"advise servers --load 1MB --rate 1GB/s --compute 1s --workers {_MANY}", "10^399 workers or more"),
        ("advise servers --load 1e308 --rate 1e290 --compute 1s --workers 10", "over 1.79769e+308 bytes at 1e+290 byt"),
    ],
)
def test_numbers_beyond_floats_are_refused_by_name(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    assert message in capsys.readouterr().err


def test_a_transfer_whose_products_leave_the_range_of_floats(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["advise", "servers", "--load", "1e308", "--rate", "1e308", "--compute", "1s", "--workers", "10", "--json"]
        )
        == 0
    )
    assert '"servers": 20, "transfer_s": 1.0' in capsys.readouterr().out
    assert transfer_s(_LARGEST, 4, _LARGEST, 8) == 1.0
    assert transfer_s(3.0, 1, math.inf, 1) == 0.0


@pytest.mark.parametrize("ratio", [0.0, 1e12, 1e17, 1e308])
def test_one_device_has_the_speed_of_one_device(ratio: float) -> None:
    """(1 + R) ÷ R rounds to 1 where R is large, and 1x is reached all the same."""
    assert SerialOverhead(ratio).workers_for(1.0) == 1


def test_a_measured_point_of_too_many_devices_is_refused() -> None:
    from dlplacer.planning.hybrid.scaling_fit import fit_scaling

    with pytest.raises(InputError, match="there may be at most"):
        fit_scaling([(1, 1.0), (10**400, 2.0)])
