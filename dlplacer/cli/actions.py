"""Actions of the sub-commands: each calls a function of `dlplacer` with the given arguments, and shows the result."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import dlplacer as dp
from dlplacer.api import parameters as the
from dlplacer.cli.parser import Given
from dlplacer.cli.progress import Show, interruptible, note, progress, told_written
from dlplacer.core.errors import CheckError, DlplacerError, InputError, NoPlanError
from dlplacer.core.options import CHOICES, Options
from dlplacer.core.table import Table, schedule, transfers
from dlplacer.core.units import format_seconds

if TYPE_CHECKING:
    from dlplacer.api.views import Block

T = TypeVar("T")

_WIDTH = 150
_LIMIT_S = 60.0
_WRITE_FACTOR = 1.0
"""Time to write a plan ÷ time to read its graph: 0.4 to 0.9 on 106,000 ops, which take seconds."""
_PARTIAL = "stopping with the answers so far; once more to give up"


def called(
    function: Callable[..., T],
    given: Given,
    what: str,
    limit_s: float | None = None,
    says: str = "",
    keep: Callable[[T], None] = lambda value: None,
    **more: Any,
) -> T:
    """The result of a function of `dlplacer` on the given arguments, its progress shown meanwhile.

    Parameters
    ----------
    what
        Name of the work, for its progress.
    says
        Announcement for a function that the first Ctrl-C stops; empty for one that ends at once.
    keep
        Writes the result, so that a Ctrl-C that comes too late to stop the work does not lose it.
    """
    with interruptible(says) if says else nullcontext() as stop:
        extra = more if stop is None else {"stop": stop, **more}
        try:
            with progress(what, limit_s) as show:
                value = function(**{**given.arguments, "on_progress": show, **extra})
        except NoPlanError:
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt from None
            raise
        keep(value)
    return value


def shown(given: Given, value: Any, record: object = None, extra: "Sequence[Block]" = (), code: int = 0) -> int:
    """Print the view of a result, or with ``--json`` the record or else the result's object; returns the exit code."""
    if given.json:
        print(json.dumps(value.to_dict() if record is None else record))
    else:
        from dlplacer.api.views import blocks_of

        show_blocks([*blocks_of(value), *extra])
    return code


def show_blocks(blocks: "Iterable[Block]") -> None:
    """Print the parts of a view at the width of the terminal, or that of a file; names are never markup."""
    from rich import table as rich_table
    from rich.console import Console

    console = Console(width=None if Console().is_terminal else _WIDTH, markup=False, emoji=False, highlight=False)
    for block in blocks:
        if isinstance(block, Table) and block.rows:
            grid = rich_table.Table(title=block.title or None)
            for head, side in zip(block.heads, block.sides, strict=True):
                grid.add_column(head, justify=side)  # type: ignore[arg-type]
            for row in block.cells:
                grid.add_row(*row)
            console.print(grid)
        elif isinstance(block, list):
            width = max(len(name) for name, _ in block)
            print("\n".join(f"{name:<{width}}  {value}" for name, value in block))
        elif isinstance(block, str) and block:
            print(block)


def written(given: Given, value: Any, subject: str = "") -> None:
    """Write a result, its pictures and its page where the command line asks for them."""
    if given.output is not None:
        value.save(given.output)
    pictures = [each.name for each in the.pictures(subject) if each.name in given]
    for name in pictures:
        colors = {"color_by": given.color_by} if name == "gantt" and given.color_by else {}
        dp.plot.save(given[name], name if subject == "plan" else subject.split()[0], value, **colors)
    if given.html is not None:
        dp.show(value if given.against is None else given.plan, given.html, against=given.against)
    told_written(given.output, *(given[name] for name in pictures), given.html)


def say_unless_none(*texts: str | None) -> None:
    """Tell each on stderr, unless it shall be quiet."""
    for text in texts:
        if text is not None:
            note(text)


def options_of(given: Given) -> Options:
    """The options of the problem; raises InputError for one that contradicts ``--paper``."""
    chosen = {name: given[name] for name in CHOICES if name in given}
    if not given.paper:
        return Options(**chosen)
    paper = Options.paper().to_dict()
    for name, value in chosen.items():
        if value != paper[name]:
            raise InputError(
                f"--{name} {value} contradicts --paper, which means --{name} {paper[name]}; leave out one of the two"
            )
    return Options.paper()


def solve(given: Given) -> int:
    """Solve, write the plan, and print the result."""
    from dlplacer.planning.garbage import fewer_collections
    from dlplacer.planning.one_device import launch_note, one_device_is_best
    from dlplacer.planning.pipeline.hint import pipeline_hint

    limit_s, says = given.get("time_limit_s", _LIMIT_S), "stopping with the best plan so far; once more to give up"
    if given.split is not None:
        return _solve_with_splits(given, limit_s, says)
    _refuse_without_split(given)
    if "work_s" in given and "time_limit_s" in given:
        raise InputError("work_s is in place of time_limit_s; leave one of them out")
    options = options_of(given)
    with fewer_collections():
        read, limit_s = _with_read_graph(given, limit_s)
        more = {"options": options, "time_limit_s": limit_s}
        result = called(dp.place, read, "solving", limit_s, says, lambda result: written(given, result), **more)
    plan = result.plan
    warm = None if given.warm_start is None else f"warm start: {plan.provenance['warm_start']}"
    if plan.period_s is not None:
        return shown(given, result)
    say_unless_none(warm, launch_note(result))
    hint = pipeline_hint(plan.graph, plan.topology, plan.makespan_s)
    shown(given, result, {**result.to_dict(), "pipeline": None if hint is None else hint.to_dict()})
    alone = one_device_is_best(plan, result.bounds.get("critical_path_s"))
    say_unless_none(alone, str(hint) if hint is not None and hint.is_faster else None)
    return 0


def _with_read_graph(given: Given, limit_s: float) -> tuple[Given, float]:
    """The arguments with the graph read from its file, and the limit less the time to read it and to write a plan."""
    from dlplacer.api.jobs import is_entry
    from dlplacer.api.subjects import graph_of

    if is_entry(given.graph):
        return given, limit_s
    began, step = time.monotonic(), given.only(the.STEP, the.RECORDED)
    graph = graph_of(given.graph, step=step)
    files_s = (time.monotonic() - began) * (1 if given.output is None else 1 + _WRITE_FACTOR)
    return Given({**given.but(*step), "graph": graph}), max(limit_s - files_s, limit_s / 2)


def _solve_with_splits(given: Given, limit_s: float, says: str) -> int:
    from dlplacer.frontend.torch.capture import default_rewrites

    parts, rewrites = _parts(given), default_rewrites(bool(given.whole_backward))
    more = {"options": options_of(given), "graph": given.times, "parts": parts, "rewrites": rewrites}
    named = given.but("graph", "split", "times", "whole_backward", "granularity", "allow_other_loss", "dims")
    found = called(
        dp.place_with_splits, named, "solving with splits", limit_s, says, job=given.graph, time_limit_s=limit_s, **more
    )
    written(given, found.split)
    record = {**found.split.to_dict(), "speedup": found.speedup, "splits": [str(split) for split in found.splits]}
    return shown(given, found, {**record, "without_splits": found.whole.to_dict()})


def _refuse_without_split(given: Given) -> None:
    for name in ("times", "search_s"):
        if name in given:
            raise InputError(f"{name} is read by --split alone; add --split, or leave it out")


def _parts(given: Given) -> int | None:
    """The number of parts that ``--split`` gives, None for one per device; refuses options that exclude it."""
    from dlplacer.api.jobs import is_entry

    excluded = {
        **dict.fromkeys(("pins", "colocate", "warm_start"), "chooses splits and devices together"),
        "calibration": "measures or estimates its own times",
        "issue": "knows no cost of issuing but the topology's",
        "micro_batches": "splits the step's ops in another way",
        "splits_of": "chooses splits and takes none of a file",
        "colocate_backward": "must not hold all parts together",
    }
    for name, reason in excluded.items():
        if name in given and not (name == "calibration" and "devices" in given):
            raise InputError(f"{name} does not go together with --split, which {reason}; give one of them")
    model = given.get("graph", given.job)
    if not is_entry(model):
        raise InputError(f"--split needs the model as module:callable, to rewrite its step; {model!r} is a file")
    if given.get("granularity", "aten") != "aten":
        raise InputError(f"granularity is {given.granularity}, but --split works on ATen calls; drop it")
    if given.split == "auto":
        return None
    if not given.split.isdecimal() or int(given.split) < 2:
        raise InputError(f"--split is {given.split!r}; give auto or a number of parts from 2 on")
    return int(given.split)


def compare(given: Given) -> int:
    """Run every method, draw the picture, and print the table."""
    from dlplacer.planning.one_device import one_device_is_best

    says, limit_s = "stopping with the best plans so far; once more to give up", given.get("time_limit_s", _LIMIT_S)
    found = called(dp.compare, given, "comparing", limit_s, says, options=options_of(given))
    written(given, found, "comparison")
    shown(given, found)
    best = found.rows[0].plan
    say_unless_none(None if best is None else one_device_is_best(best))
    return 0


def check(given: Given) -> int:
    """Print every violation; exit code 5 if there is one."""
    from dlplacer.api.views import stated

    plan = dp.load_plan(given.plan)
    found = dp.violations(plan)
    if given.json:
        listed = [{"rule": violation.rule, "message": violation.message} for violation in found]
        return shown(given, None, {"valid": not found, "violations": listed}, code=CheckError.exit_code if found else 0)
    if found:
        raise CheckError([str(violation) for violation in found])
    kept = f"{given.plan}: {len(plan.ops)} ops and {len(plan.transfers)} transfers keep every rule"
    show_blocks([kept, f"as the file states, not proved again: {stated(plan)}"])
    return 0


def show(given: Given) -> int:
    """Print the table and write the files that are asked for."""
    from dlplacer.api.subjects import whole_plan_of
    from dlplacer.files import write_json, write_text
    from dlplacer.report.export.device_map import device_map, overfull_devices, spread_modules
    from dlplacer.report.trace import chrome_trace

    for name, needed in (("against", "html"), ("color_by", "gantt"), ("device_map_rule", "device_map")):
        if name in given and needed not in given:
            target = needed.replace("_", "-")
            raise InputError(f"{name} {given[name]} is for --{target}; add it, or leave out the other")
    plan = whole_plan_of(given.plan)
    shown(given, plan)
    written(given, plan, "plan")
    if given.trace is not None:
        write_json(given.trace, chrome_trace(plan))
    if given.device_map is not None:
        write_json(given.device_map, device_map(plan, rule=given.get("device_map_rule", "majority")))
        spread = len(spread_modules(plan))
        say_unless_none(f"{spread} modules are spread over devices; the map names one" if spread else None)
        say_unless_none(*overfull_devices(plan))
    beside = None
    if given.csv is not None:
        beside = given.csv.with_name(f"{given.csv.stem}-transfers{given.csv.suffix}")
        write_text(given.csv, schedule(plan).to_csv())
        write_text(beside, transfers(plan).to_csv())
    told_written(given.csv, beside, given.trace, given.device_map)
    return 0


def explain(given: Given) -> int:
    """Print the causes of a plan's step time, then the changes that would shorten it."""
    from dlplacer.api.subjects import whole_plan_of
    from dlplacer.api.views import blocks_of, elsewhere_blocks
    from dlplacer.planning.constrain import matching
    from dlplacer.problem.simulate import replay_under_issue

    held, budget_s = bool(given.pins or given.colocate), given.get("budget_s", 10.0)
    plan = whole_plan_of(given.plan)
    plan.options.require_makespan("explain")
    times = {entry.op: entry.end_s - entry.start_s for entry in plan.ops}
    whys = [max(matching(plan.graph, pattern), key=times.__getitem__) for pattern in given.why or ()]
    if given.dispatch_s:
        # What would help is asked under it too.
        plan = replay_under_issue(plan, given.dispatch_s)
    explanation = dp.explain(plan)
    record = explanation.to_dict()
    if not given.json:
        show_blocks([[("makespan", format_seconds(plan.makespan_s))], *blocks_of(explanation)])
    blocks: list[Block] = []
    share_s = budget_s / (held + len(whys) or 1)
    solving = {"plan": plan, "workers": given.workers}
    with interruptible(_PARTIAL) as stop, progress("solving again", budget_s) as told:
        if held:
            pinned = dp.pinned(
                pins=given.pins or (), colocate=given.colocate or (), budget_s=share_s, stop=stop, **solving
            )
            record["pinned"], blocks = pinned.to_dict(), [*blocks_of(pinned)]
        if whys:
            moved = [one for op in whys for one in dp.elsewhere(op=op, budget_s=share_s, stop=stop, **solving)]
            record["elsewhere"] = [one.to_dict() for one in moved]
            blocks += elsewhere_blocks(plan, moved)
        if not held and not whys and budget_s:
            helping = dp.what_would_help(budget_s=budget_s, on_progress=told, stop=stop, **solving)
            record["what_would_help"], blocks = helping.to_dict(), [*blocks_of(helping)]
    print(json.dumps(record)) if given.json else show_blocks(blocks)
    return 0


def run(given: Given) -> int:
    """Run, measure and print; start the processes of a plan over ranks."""
    from dlplacer.api.jobs import job_options
    from dlplacer.api.running import completed, is_onnx_plan, over_ranks, replicas_of
    from dlplacer.machines.host_load import load_note
    from dlplacer.planning.one_device import one_device_note

    plan, devices, job = dp.load_plan(given.plan), given.devices, given.job
    if is_onnx_plan(plan):
        for name in ("gantt", "trace", "html", "replicas"):
            if name in given:
                raise InputError(f"{name} is for models in torch; leave it out, the plan is of an ONNX file")
    else:
        job, options = completed(job, plan, job_options(given))
        devices = _process_per_gpu(given, options.get("mode"))
        if over_ranks(plan, devices.split(","), given.replicas) and "RANK" not in os.environ:
            from dlplacer.runtime.distributed.ranks import parse_ranks, run_as_ranks

            count = parse_ranks(plan, devices.split(","), given.replicas or replicas_of(plan)).count
            return run_as_ranks(count, [*given.words, "--devices", devices])
    is_first = os.environ.get("RANK", "0") == "0"
    if is_first:
        say_unless_none(load_note(), one_device_note(plan))
    hushed: Show = lambda *told: None  # noqa: E731
    with progress("running") if is_first else nullcontext(hushed) as told:
        told("capturing and compiling")
        arguments = given.but("gantt", "trace", "one_process").arguments
        done = dp.run(**{**arguments, "job": job, "plan": plan, "devices": devices, "on_progress": told})
    if is_first:
        shown(given, done)
        _write_run(given, done)
    return 0


def _process_per_gpu(given: Given, mode: str | None) -> str:
    """Devices with ranks for several GPUs, unless ranks are named or one process is asked for."""
    from dlplacer.runtime.distributed.ranks import rank_per_gpu

    devices: str = given.devices
    alone = given.one_process or given.replicas is not None or mode == "infer"
    if alone or int(os.environ.get("WORLD_SIZE", "1")) > 1 or "rank" in devices:
        return devices
    ranked = rank_per_gpu(devices.split(","))
    if ranked is None:
        return devices
    note(f"one process per GPU ({','.join(ranked)}); --one-process keeps one")
    return ",".join(ranked)


def _write_run(given: Given, done: Any) -> None:
    if given.gantt is not None:
        dp.plot.save(given.gantt, "run", done)
    if given.trace is not None:
        from dlplacer.files import write_json
        from dlplacer.report.trace import run_trace

        write_json(given.trace, run_trace(done.predicted, done.measured))
    told_written(given.gantt, given.trace)
    written(given, done)


def profile(given: Given) -> int:
    """Profile, write the graph, and print the serial time."""
    if given.split is not None:
        more = {"graph": given.times, "parts": _parts(given)}
        named = given.but("split", "times", "granularity", "calibration", "allow_other_loss", "dims")
        choice = called(dp.profile_splits, named, "choosing splits", None, _PARTIAL, **more)
        written(given, choice.graph)
        found = {"without_splits_s": choice.whole_s, "with_splits_s": choice.split_s}
        splits = [str(split) for split in choice.splits]
        return shown(given, choice, {"ops": len(choice.graph.ops), **found, "splits": splits})
    _refuse_without_split(given)
    graph = called(dp.profile, given, "profiling")
    written(given, graph)
    types = (graph.capture or {}).get("measured_on", ())
    serial = {kind: sum(op.time_on(kind) or 0.0 for op in graph.ops) for kind in types}
    return shown(given, graph, {"ops": len(graph.ops), "serial_s": serial})


def capture(given: Given) -> int:
    """Capture a graph, write it and print what it holds."""
    with progress("capturing"):
        found = dp.capture(**given.arguments)
    return graph(given, found)


def graph(given: Given, graph: dp.OpGraph) -> int:
    """Write a graph where asked, and print what it holds."""
    written(given, graph)
    sums = {name: sum(getattr(op, name) for op in graph.ops) for name in ("flops", "weight_bytes")}
    counts = {"name": graph.name, "ops": len(graph.ops), "edges": len(graph.edges)}
    return shown(given, graph, {**counts, **sums, "structure_sha256": graph.structure_sha256})


def selftest(given: Given) -> int:
    """Try everything and print; exit code 5 if a check failed."""
    from dlplacer.files import write_json

    done = called(dp.selftest, given, "trying the runtime")
    if given.output is not None:
        write_json(given.output, done.to_dict())
        told_written(given.output)
    return shown(given, done, code=0 if done.passed else CheckError.exit_code)


def topology(given: Given, found: dp.Topology) -> int:
    """Write a topology where asked, and print it."""
    from dlplacer.files.topology_file import topology_to_dict

    written(given, found, "topology")
    return shown(given, found, topology_to_dict(found) if given.json else None)


def listed(given: Given) -> int:
    """Print a table of the names of one kind that dlplacer knows."""
    table = dp.catalogue(given.what)
    names = [column.name for column in table.columns]
    return shown(given, table, {given.what: [dict(zip(names, row, strict=True)) for row in table.rows]})


def epochs(given: Given) -> int:
    """Train, count, and write the file."""
    found = called(dp.epochs, given, "trainings")
    written(given, found)
    return shown(given, found)


def hybrid(given: Given) -> int:
    """Plan, draw the picture, and print the table."""
    if given.pins is not None:
        raise InputError("--pin: each worker of a hybrid gets devices of its own; use --colocate, or pin in `solve`")
    more: dict[str, Any] = {"options": options_of(given), **({"overlap": False} if given.no_overlap else {})}
    # There is no plan before the end: after the first Ctrl-C nothing new is begun.
    says = "giving up after the solve at hand; once more to give up at once"
    plan = called(dp.hybrid, given.but("no_overlap"), "hybrids", None, says, **more)
    written(given, plan, "hybrid plan")
    shown(given, plan)
    for warning in plan.warnings:
        print(f"dlplacer: {warning}", file=sys.stderr)
    return 0


def pipeline(given: Given) -> int:
    """Plan the pipeline, compare it with op placement, and print both."""
    from dlplacer.api.solving import held_graph, problem_of
    from dlplacer.files import write_text
    from dlplacer.planning.pipeline.schedules import write_csv

    if given.plan_file is not None:
        _require_capturable(given)
    step = given.only(the.STEP)
    with progress("capturing"):
        graph, machine = problem_of(given.graph, given.topology, given.calibration or (), step)
    graph = held_graph(graph, machine, given.pins or (), given.colocate or ())
    plan = called(dp.pipeline, given.only(the.STAGES), "pipelines tried", graph=graph, topology=machine)
    for warning in plan.warnings:
        print(f"dlplacer: {warning}", file=sys.stderr)
    if given.csv is not None:
        write_text(given.csv, write_csv(plan.order))
    written(given, plan, "pipeline plan")
    if given.plan_file is not None:
        count = plan.micro_batches if plan.micro_batches > 1 else None
        cut = dp.capture(given.graph, **step, **given.only(the.OTHER_LOSS), micro_batches=count)
        made = dp.plan_of_pipeline(
            plan, cut, given.topology, held=graph.constraints, calibration=given.calibration or ()
        )
        made.save(given.plan_file)
    told_written(given.csv, given.plan_file)
    limit_s = given.get("time_limit_s", 10.0)
    placed = _op_placement(graph, machine, limit_s) if limit_s else None
    extra = []
    if placed is not None:
        ratio = placed["makespan_s"] / plan.step_s if plan.step_s else 0.0
        verdict = f"the pipeline is {ratio:.2f}x as fast" if ratio >= 1 else "faster than the pipeline"
        extra = [f"op placement takes {format_seconds(placed['makespan_s'])} ({placed['status']}); {verdict}"]
    return shown(given, plan, {**plan.to_dict(), "op_placement": placed}, extra)


def _require_capturable(given: Given) -> None:
    """A plan of micro-batches is one of another graph, which takes the model's code to make."""
    from dlplacer.api.jobs import is_entry

    if not is_entry(given.graph):
        raise InputError(
            f"-o needs the model as module:callable, to capture its micro-batches; {given.graph!r} is a file: drop -o, "
            "or name the model that it was captured from"
        )
    if given.get("granularity", "aten") != "aten":
        raise InputError(f"-o writes a plan of ATen calls; drop --granularity {given.granularity}")


def _op_placement(graph: dp.OpGraph, machine: dp.Topology, limit_s: float) -> dict[str, Any] | None:
    """Step time and speedup of a plan of op placement, or None if none was found."""
    try:
        with progress("op placement, to compare with", limit_s) as told:
            result = dp.place(graph, machine, time_limit_s=limit_s, on_progress=told)
    except DlplacerError as error:
        note(f"no op placement to compare with: {error}")
        return None
    return {"status": result.plan.status, "makespan_s": result.plan.makespan_s, "speedup": result.speedup}


def figures(given: Given, found: dict[str, float]) -> int:
    """Print single figures; JSON has no infinity, so no ceiling is null."""
    return shown(given, found, {name: None if value == float("inf") else value for name, value in found.items()})


def fit(given: Given) -> int:
    """Fit, write the plan, and print layers per device, other splits, and the texts to paste."""
    from dlplacer.api.fitting import exports

    # Not `given.arguments`, which leaves the objective to the options of a problem.
    found = dp.fit(**given.only(the.DECODER, the.MACHINE, the.SERVED, the.FITTED, the.DESCRIBED))
    written(given, found, "fit")
    texts = [export_of(found, target) for target in given.to or ()]
    return shown(given, found, {**found.to_dict(), "exports": exports(found)} if given.json else None, texts)


def export_of(found: Any, target: str) -> str:
    """The text to paste, or why there is none."""
    try:
        done = dp.export(found, target)
    except InputError as error:
        return str(error)
    return f"{target}:\n{done.text}" + (f"\n({done.note}: {100 * done.loss:.1f} % slower)" if done.note else "")


def export(given: Given) -> int:
    """Print the text to paste; its cost goes to stderr."""
    done = dp.export(given.plan, given.to)
    print(done.text)
    say_unless_none(f"{done.note}: {100 * done.loss:.2f} % slower" if done.note else None)
    return 0
