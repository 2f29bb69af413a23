"""A run on a busy machine says so first."""

import os

import pytest

from dlplacer.cli.run import _warn_if_busy


@pytest.mark.parametrize(("load", "told"), [(0.4, False), (2.5, False), (7.25, True)])
def test_a_busy_machine_is_named(
    load: float, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    _warn_if_busy()
    assert capsys.readouterr().err == (
        "dlplacer: this machine is busy (load 7.2 on 6 cores); its timings will say little\n" if told else ""
    )
