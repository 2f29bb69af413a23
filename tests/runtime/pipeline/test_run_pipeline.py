"""A pipeline planned, run and measured by two processes; the command that torchrun starts."""

import math
import warnings

import pytest
import torch
import torch.distributed as dist

from dlplacer.core.errors import InputError
from dlplacer.models import mlp
from dlplacer.runtime.distributed.launch import launch
from dlplacer.runtime.pipeline.main import job_of, main
from dlplacer.runtime.pipeline.run_pipeline import PipelineReport, run_pipeline


def measured(_rank: int) -> PipelineReport:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    report = run_pipeline(mlp(batch_size=16, depth=3), [2, 4], ["1f1b", "zero-bubble"], steps=2, warm_up=1)
    dist.destroy_process_group()
    return report


def test_both_ranks_report_the_same_run() -> None:
    first, second = launch(2, measured, timeout_s=120)
    assert first.error is None, first.error
    assert second.error is None, second.error
    report: PipelineReport = first.result
    assert report.micro_batches in (2, 4)
    assert report.schedule in ("1f1b", "zero-bubble")
    assert report.stages == 2
    assert report.max_abs_error < 1e-6
    assert 0 < report.bubble < 1
    assert all(value > 0 for pair in report.stage_s for value in pair)
    assert report.measured_speedup == pytest.approx(report.baseline_s / report.measured_s)
    assert report.predicted_speedup == pytest.approx(report.baseline_s / report.predicted_s)
    assert math.isfinite(report.to_dict()["prediction_error"])
    for name in ("schedule", "micro_batches", "measured_s", "baseline_s", "stage_s", "max_abs_error"):
        assert getattr(second.result, name) == getattr(report, name), name


def test_without_torchrun_the_command_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dlplacer.models:mlp"]) == 2
    assert "start this with torchrun --nproc-per-node N" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("dlplacer.models:nothing", "'dlplacer.models:nothing' cannot be imported: .* name module:callable"),
        ("no_such_module:mlp", "cannot be imported: No module named 'no_such_module'"),
        ("mlp", "cannot be imported"),
        ("builtins:dict", "returned an object of type dict; it must return a dlplacer.Job"),
    ],
)
def test_a_model_that_is_not_there_is_named(entry: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        job_of(entry, {})


@pytest.mark.parametrize("options", [["--micro-batches", "2,x"], ["--micro-batches", "0"], ["--arguments", "[1]"]])
def test_options_that_are_no_numbers_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["dlplacer.models:mlp", *options])
    assert f"argument {options[0]}: " in capsys.readouterr().err
