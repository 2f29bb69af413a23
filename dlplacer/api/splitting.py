"""Planning with splits of ops: `place_with_splits`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dlplacer.api.solving import expect_solving
from dlplacer.api.subjects import (
    GraphLike,
    OptionsLike,
    TopologyLike,
    graph_of,
    job_of,
    machine_of,
    names_of,
    options_of,
)
from dlplacer.core.expect import expect_call, expect_whole, tuple_of

if TYPE_CHECKING:
    from threading import Event

    from dlplacer.frontend.torch.job import Job
    from dlplacer.measure.splitting.choose_splits import Prospect
    from dlplacer.measure.splitting.place_with_splits import SplitResult
    from dlplacer.runtime.devices.base import NamedDevice


def place_with_splits(
    job: "Job",
    topology: TopologyLike,
    options: OptionsLike = None,
    *,
    graph: GraphLike | None = None,
    devices: "str | Sequence[NamedDevice]" = (),
    parts: int | None = None,
    rewrites: Sequence[str] | None = None,
    time_limit_s: float = 120.0,
    on_progress: "Callable[[Prospect], None] | None" = None,
    method: str = "ilp",
    gap: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    stop: "Event | None" = None,
) -> "SplitResult":
    """The best plans found for a job without and with splits of its ops.

    Parameters
    ----------
    job, topology, options
        As for `dlplacer.place`.
    graph
        The job's graph without splits, with measured times as `dlplacer.profile` makes it; else the roofline gives the
        times, of parts as of whole ops.
    devices
        Devices of this machine on which to profile the chosen splits, and the whole graph where `graph` has no times
        measured there; empty to estimate parts as shares of the ops that they come from.
    parts
        Into how many parts an op is split; None means as many as there are devices.
    rewrites
        Names of the rewrites of the capture; None means the usual ones.
    time_limit_s
        For choosing and solving; two fifths of it go to the choice. Profiling comes on top.
    method, gap, seed, workers, stop
        As for `dlplacer.place`.

    Raises
    ------
    InputError
        If the graph is not the job's, or an argument cannot be meant.
    InfeasibleError, NoPlanError
        As `dlplacer.place` does.

    Examples
    --------
    >>> import dlplacer as dp, torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    >>> job = dp.Job(module, args=(torch.randn(4096, 256),), mode="infer")
    >>> found = dp.place_with_splits(job, "cpu-2core", time_limit_s=4)
    >>> found.gain >= 1
    True
    """
    from dlplacer.measure.splitting import place_with_splits as place_job

    expect_solving(method, time_limit_s, gap, seed, workers, on_progress, stop)
    expect_whole("", optional=True, parts=parts)
    expect_call("", optional=True, on_progress=on_progress)
    return place_job(
        job_of(job),
        machine_of(topology),
        options_of(options),
        graph=None if graph is None else graph_of(graph),
        devices=names_of(devices),
        parts=parts,
        rewrites=None if rewrites is None else tuple_of("", "rewrites", rewrites, str, "names of rewrites"),
        time_limit_s=time_limit_s,
        on_progress=on_progress or (lambda prospect: None),
        method=method,
        gap=gap,
        seed=seed,
        workers=workers,
        stop=stop,
    )
