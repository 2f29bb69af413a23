"""Results for a reader: the figures and tables of each value, for the terminal and for notebooks alike."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from dlplacer.check import resource_loads
from dlplacer.core import table
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.core.result import FITS_NONE, Result
from dlplacer.core.table import Column, Table
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from dlplacer.api.scaling import Batches, Epochs, Groups
    from dlplacer.measure.run_report import Run
    from dlplacer.measure.selftest import Selftest
    from dlplacer.measure.splitting import SplitChoice, SplitResult
    from dlplacer.planning.compare import Comparison
    from dlplacer.planning.fit.fit import Fit
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
    from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
    from dlplacer.planning.what_if import Elsewhere, PinnedPlan, WhatWouldHelp
    from dlplacer.report.explanation import Explanation
    from dlplacer.report.export.targets import Exported
    from dlplacer.runtime.onnx.run_cut_model import OnnxReport

Facts: TypeAlias = list[tuple[str, str]]
"""Names and values of single figures; those without a value are not shown."""

Block: TypeAlias = Facts | Table | str
"""Part of a view; a text is a note."""

_KINDS, _PATH, _MOVED, _CHANGES, _BUDGETS, _HELPS = 8, 12, 20, 8, 24, 5
"""Rows that are shown, at most."""
_LEAST_GAIN = 0.002
"""A smaller gain counts as none."""
_OBJECTIVES = {
    "token": "time per token",
    "throughput": "time between two steps",
    "prefill": "time of the prompts",
    "request": "time of a request",
}


def blocks_of(value: object) -> Iterator[Block]:
    """The parts of a value's view, in order."""
    if isinstance(value, Table):
        yield value
        return
    view = next(_VIEWS[kind.__name__] for kind in type(value).__mro__ if kind.__name__ in _VIEWS)
    yield from view(value)


def table_of(value: object) -> Table:
    """The main table of a value: all its rows and columns where it has them, else the first of its view."""
    found = getattr(value, "table", None)
    return found if isinstance(found, Table) else next(each for each in blocks_of(value) if isinstance(each, Table))


def subject_of(value: object) -> str:
    """The names of graph and machine that a value is about."""
    if isinstance(value, Plan):
        from dlplacer.report.summary import subject

        return subject(value)
    for attribute in ("plan", "predicted", "base"):
        if isinstance(getattr(value, attribute, None), Plan):
            return subject_of(getattr(value, attribute))
    return getattr(value, "name", "") or ""


def stated(plan: Plan) -> str:
    """The status, bound and gap that a plan file states; loading it proves none of them."""
    return f"{plan.status}, lower bound {format_seconds(plan.lower_bound_s)}, gap {100 * plan.gap:.2f} %"


_percent, _times = Column("share", format="percent").cell, Column("ratio", format="times").cell


def _count(number: int, what: str = "device") -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _graph(graph: "OpGraph") -> Iterator[Block]:
    kinds = Counter(op.kind for op in graph.ops)
    phases = Counter(op.phase or "no phase" for op in graph.ops)
    timed = [op.time_s for op in graph.ops if isinstance(op.time_s, Mapping)]
    serial_s = {kind: sum(times.get(kind, 0.0) for times in timed) for kind in sorted(set(chain(*timed)))}
    untyped = "all types" if any(op.time_s for op in graph.ops) else "none: roofline"
    mode = (graph.capture or {}).get("mode")
    work = f"{sum(op.flops for op in graph.ops) / 1e9:.4g} GFLOP"
    yield [
        ("ops", f"{len(graph.ops)}: {', '.join(f'{count} {phase}' for phase, count in phases.items())}"),
        ("edges", str(len(graph.edges))),
        ("work", f"{work}, mode {mode}" if mode else work),
        ("weights", format_bytes(sum(op.weight_bytes for op in graph.ops))),
        *((f"one after another on {kind}", format_seconds(total_s)) for kind, total_s in serial_s.items()),
        ("times for", "" if serial_s else untyped),
        ("source", graph.source),
    ]
    yield Table.described(kinds.most_common(_KINDS), "kind|most frequent kinds", "ops")


def _topology(topology: "Topology") -> Iterator[Block]:
    yield table.devices(topology)
    if topology.links:
        yield table.links(topology)
    yield topology.source


def _plan(plan: Plan) -> Iterator[Block]:
    held = plan.graph.constraints
    pins = ", ".join(f"{_count(count, 'op')} on {device}" for device, count in Counter(held.pins.values()).items())
    together = ", ".join(_count(len(ops), "op") for ops in held.colocate)
    yield [
        ("graph", f"{plan.graph.name or 'unnamed'}: {len(plan.graph.ops)} ops, {len(plan.graph.edges)} edges"),
        ("topology", f"{plan.topology.name or 'unnamed'}: {len(plan.topology.devices)} devices"),
        ("options", ", ".join(f"{name} {value}" for name, value in plan.options.to_dict().items())),
        ("pins", pins),
        ("held together", together),
        *_values(plan),
        ("as the plan states", stated(plan)),
        _method(plan),
    ]
    yield from _use(plan)


def _method(plan: Plan) -> tuple[str, str]:
    return "method", f"{plan.method}, {plan.solve_s:.1f} s"


def _result(result: "Result") -> Iterator[Block]:
    plan, alone_s = result.plan, result.single_device_s
    yield [
        ("status", plan.status),
        *_values(plan),
        ("lower bound", format_seconds(plan.lower_bound_s)),
        ("gap", _percent(plan.gap)),
        ("rounding", format_seconds(plan.rounding_s) if plan.rounding_s else ""),
        ("best single device", FITS_NONE if alone_s is None else format_seconds(alone_s)),
        ("speedup", "" if alone_s is None else _times(result.speedup)),
        _method(plan),
    ]
    yield from _use(plan)


def _values(plan: Plan) -> Facts:
    """The makespan; behind the value of another objective, if the plan has one."""
    if plan.period_s is None:
        return [("makespan", format_seconds(plan.makespan_s))]
    value = f"{format_seconds(plan.value_s)} per step in steady state"
    return [(plan.objective.label, value), ("makespan of one step", format_seconds(plan.makespan_s))]


def _use(plan: Plan) -> Iterator[Block]:
    """The use of the devices, and the loads behind a period, the largest first."""
    yield table.device_use(plan)
    if plan.period_s is not None:
        found = sorted(resource_loads(plan).items(), key=lambda entry: -entry[1])
        rows = ((name, load_s, load_s / plan.period_s if plan.period_s else 0.0) for name, load_s in found if load_s)
        yield Table.described(
            rows, "resource|device or link direction", "load_s|load|seconds", "share|of the period|percent"
        )


def _split_result(found: "SplitResult") -> Iterator[Block]:
    yield from _result(found.split)
    yield [
        ("ops split", f"{len(found.splits)}, of {found.evaluated} sets tried"),
        ("without splits", format_seconds(found.whole.plan.makespan_s)),
        ("speedup, ops whole", FITS_NONE if found.speedup is None else _times(found.speedup)),
    ]


def _split_choice(found: "SplitChoice") -> Iterator[Block]:
    times = f"{format_seconds(found.split_s)} instead of {format_seconds(found.whole_s)}"
    count = f"{len(found.splits)} ops split, {len(found.graph.ops)} ops"
    yield f"{found.graph.name}: {count}; a list schedule takes {times}"


def _comparison(found: "Comparison") -> Iterator[Block]:
    yield found.table.only("method", "status", "makespan_s", "speedup", "gap", "solve_s")
    alone_s = found.single_device_s
    yield [
        ("lower bound", format_seconds(found.lower_bound_s)),
        ("best single device", FITS_NONE if alone_s is None else format_seconds(alone_s)),
    ]


def _run(done: "Run") -> Iterator[Block]:
    from dlplacer.measure.run_report import shown_figures

    report = done.report
    yield report.conclusion
    yield shown_figures(report)
    shares = [(share, how) for share in ("busy", "idle") for how in ("predicted", "measured")]
    heads = (f"{how}_{share}_s|{share}, {how}|seconds" for share, how in shares)
    yield Table.described(report.use, "device", *heads)
    times = ("predicted_s|predicted|seconds", "measured_s|measured|seconds", "difference_s|difference|later")
    yield Table.described(report.offenders, "op|predicted worst", "module||text|", "device", *times)


def _onnx_report(report: "OnnxReport") -> Iterator[Block]:
    rows = (
        ("plan", report.predicted_s, None),
        ("whole model, one device", report.baseline_s, 1.0),
        (f"cut by device, {report.parts} parts", report.measured_s, report.measured_speedup),
    )
    yield Table.described(rows, "what|one inference", "seconds||seconds", "speedup||times|")
    yield f"largest difference to the whole model's outputs {report.max_abs_error:g}"


def _pipeline(plan: "PipelinePlan") -> Iterator[Block]:
    yield plan.table.only("stage", "device", "ops", "forward_s", "backward_s", "held", "memory_bytes", "sends_bytes")
    split = "best of all contiguous splits" if plan.exact else "best of the splits searched"
    alone_s = plan.single_device_s
    yield [
        ("schedule", f"{plan.schedule}, {plan.micro_batches} micro-batches"),
        ("step time", format_seconds(plan.step_s)),
        ("bubble", f"{100 * plan.timeline.bubble:.1f} %"),
        ("slowest part", f"{format_seconds(plan.bottleneck_s)} per micro-batch ({split})"),
        (
            "best single device",
            FITS_NONE if alone_s is None else f"{format_seconds(alone_s)}; speedup {_times(plan.speedup)}",
        ),
    ]


def _hybrid(plan: "HybridPlan") -> Iterator[Block]:
    table, count = plan.table, len(plan.budgets)
    if count > _BUDGETS:
        shown = {1 << power for power in range(count.bit_length())} | {count, plan.first_win}
        table = replace(table, rows=tuple(row for row in table.rows if row[0] in shown))
    yield table
    over = f"the model {FITS_NONE}" if plan.reference_s is None else "time to converge over one device, others may idle"
    yield (
        f"speedup: {over}; vs same: hybrid over data parallelism on as many devices; vs best DP: best strategy over "
        "the best data parallelism on at most as many devices"
    )
    steps = [f"{each.workers} x {each.degree} from {_count(each.devices)}" for each in plan.crossovers]
    yield [
        ("hybrid first wins", "nowhere" if plan.first_win is None else f"at {_count(plan.first_win)}"),
        ("best strategy", f"{'; '.join(steps[:8])}{'; ...' if len(steps) > 8 else ''}"),
        *_best_strategy(plan),
        ("scaling efficiency", str(plan.scaling_fit or "")),
        ("epochs", str(plan.epochs_fit or "")),
    ]


def _best_strategy(plan: "HybridPlan") -> Iterator[tuple[str, str]]:
    best = plan.budgets[-1].best
    if best is None:
        return
    step = best.step
    messages = f", gradients in {step.groups} messages" if step.groups > 1 else ""
    algorithm = f", {step.algorithm} all-reduce" if step.algorithm else ""
    used = best.workers * best.split.used if best.split.used else best.devices
    text = (
        f"uses {_count(used)}: {_count(best.workers, 'worker')} of {best.degree} ({best.split.method}, "
        f"{best.split.speedup:.3f}x), codec {step.codec}{algorithm}{messages}, step {format_seconds(step.step_s)} of "
        f"which {format_seconds(step.exposed_s)} exposed exchange"
    )
    yield f"at {_count(plan.budgets[-1].devices)}", text
    if plan.mini_batches is not None:
        yield "time to converge", format_seconds(best.time_s(plan.mini_batches))


def _explanation(found: "Explanation") -> Iterator[Block]:
    from dlplacer.report.explanation import REASONS

    kinds = list(found.path_kinds_s.items())[:5]
    yield [
        ("bounds", ", ".join(f"{name} {format_seconds(limit_s)}" for name, limit_s in found.limits_s.items())),
        ("bound as the plan states", f"{format_seconds(found.stated_bound_s)}, not proved again here"),
        ("limited by", f"{found.limited_by}: {REASONS[found.limited_by]}"),
        (
            "critical path",
            f"{len(found.path)} steps: ops {format_seconds(found.path_ops_s)}, transfers "
            f"{format_seconds(found.path_transfers_s)}, waiting {format_seconds(found.path_waits_s)}",
        ),
        ("on it", ", ".join(f"{kind} {format_seconds(seconds)}" for kind, seconds in kinds)),
    ]
    heads = ("device", "ops", "busy_s|busy|seconds", "idle_s|idle|seconds", "on_path_s|on the critical path|seconds")
    yield Table.described(found.devices, *heads)
    longest = sorted(sorted(found.parts, key=lambda part: -part.time_s)[:_PATH], key=lambda part: part.begin_s)
    steps = ("step|longest on the critical path", "where", "start_s|start|seconds", "time_s|time|seconds")
    yield Table.described(((*_step(part.step), part.begin_s, part.time_s) for part in longest), *steps)
    if found.transfers:
        rows = tuple((one.tensor, one.target, one.bytes, one.end_s - one.start_s) for one in found.transfers)
        yield Table.described(rows, "tensor|longest transfers", "target|to", "bytes||bytes", "time_s|time|seconds")


def _step(step: ScheduledOp | Transfer) -> tuple[str, str]:
    return (f"tensor {step.tensor}", f"to {step.target}") if isinstance(step, Transfer) else (step.op, step.device)


def _what_would_help(found: "WhatWouldHelp") -> Iterator[Block]:
    """At most eight changes, those that shorten the step; the others are counted."""
    base_s, bound_s = found.base.makespan_s, found.base.lower_bound_s
    if base_s < found.given_s:
        yield (
            f"more search alone: {format_seconds(base_s)} instead of {format_seconds(found.given_s)}; gains refer to it"
        )
    helping = [one for one in found.answers if (one.gain(base_s) or 0.0) >= _LEAST_GAIN][:_CHANGES]
    shown = found.table.only("change", "makespan_s", "gain", "most_gain", "status")
    rows = [row for one, row in zip(found.answers, shown.rows, strict=True) if one in helping]
    yield replace(shown, rows=tuple(rows))
    left = f", of which {_percent(1 - bound_s / base_s)} is open without any change" if bound_s and base_s else ""
    if helping:
        yield f"gain: by how much the step found with the change is shorter; at most: what its bound allows{left}"
    untried = sum(one.status == "not tried" for one in found.answers)
    little = len(found.answers) - len(rows) - untried
    yield f"{_count(little, 'other change')} found to bring less than {_percent(_LEAST_GAIN)}, or less than these"
    if untried:
        yield f"{_count(untried, 'change')} not tried, for want of time; --budget gives more, --json lists all"


def _pinned(found: "PinnedPlan") -> Iterator[Block]:
    plan = found.plan
    yield [
        ("with the pins", f"{format_seconds(plan.makespan_s)}, {stated(plan)}"),
        ("moved", f"{len(found.moved)} of {len(plan.ops)} ops"),
    ]
    if found.moved:
        times = {entry.op: entry.end_s - entry.start_s for entry in plan.ops}
        longest = sorted(found.moved, key=lambda op: -times[op])[:_MOVED]
        rows = tuple((op, plan.graph.op(op).module or "", *found.moved[op], times[op]) for op in longest)
        yield Table.described(rows, "op|op that moves", "module", "from", "to", "time_s|time|seconds")
    if len(found.moved) > _MOVED:
        yield f"the longest {_MOVED}; --json lists all"


def elsewhere_blocks(plan: Plan, found: "Sequence[Elsewhere]") -> Iterator[Block]:
    """The step with ops on other devices, against that of the plan."""
    base_s = plan.makespan_s

    def longer(time_s: float | None, least: float = -inf) -> float | None:
        return max(least, time_s / base_s - 1) if time_s is not None and base_s else None

    rows = []
    for one in found:
        times = (one.makespan_s, longer(one.makespan_s), longer(one.lower_bound_s, 0.0))
        remark = f"{one.kept} kept on {plan.placement[one.op]}" if one.kept else one.note[:60]
        rows.append((one.op, plan.placement[one.op], one.device, *times, remark))
    heads = ("op", "is on", "device|on", "makespan_s|solved again|seconds")
    yield Table.described(rows, *heads, "longer|longer by|change", "least|at least|change", "note|")
    if not found:
        yield "the machine has one device, so no op can be elsewhere"
    if any(one.kept for one in found):
        yield "kept: the devices are interchangeable, and without it all ops would just change places"
    if any(one.makespan_s is not None and one.makespan_s < base_s for one in found):
        yield "longer by less than 0: the search found a plan that is better than the one at hand; solve on with it"


def _selftest(done: "Selftest") -> Iterator[Block]:
    rows = []
    for check in done.checks:
        limit = "" if check.limit is None else f"{check.limit:.3g}"
        verdict = "" if check.limit is None else "passed" if check.passed else "FAILED"
        value = "n/a" if check.value is None else f"{check.value:.3g} {check.unit}"
        rows.append((check.name, check.subject, value, limit, verdict))
    yield Table.described(rows, "check", "subject|of", "measured", "limit|at most", "verdict|")
    yield from (f"{check.name}, {check.subject}: {check.note}" for check in done.checks if check.note)


def _batches(found: "Batches") -> Iterator[Block]:
    rows = []
    for plan in found.plans:
        step = plan.reason if plan.step_s is None else format_seconds(plan.step_s)
        figures = (plan.samples_per_s, plan.memory_bytes, plan.bound_bytes, len(plan.recomputed), plan.training_s)
        rows.append((plan.batch, step, *figures))
    sizes = "memory_bytes|memory|bytes", "bound_bytes|for workspaces|bytes"
    heads = ("batch", "step", "samples_per_s|samples/s|number", *sizes, "recomputed modules")
    title = f"{found.device.id}, {format_bytes(found.device.memory_bytes or 0)}: the best first"
    yield Table.described(rows, *heads, "training_s|training|seconds", title=title)


def _figures(found: Mapping[str, Any]) -> Iterator[Block]:
    yield Table.described(found.items(), "figure", "value||number")


def _groups(found: "Groups") -> Iterator[Block]:
    best_s = found.policies[-1].makespan_s
    title = f"{found.direction} pass, {found.collective} over {found.devices} devices"
    times = [(one.policy, len(one.cuts), one.makespan_s) for one in found.policies]
    rows = ((*told, told[-1] / best_s if best_s else 1.0) for told in times)
    heads = ("policy", "groups", "time_s|time|seconds", "ratio|against optimal|times")
    yield Table.described(rows, *heads, title=title)
    parts = zip(found.to_dict()["groups"], found.group_bytes, strict=True)
    groups = ((number, part[0], part[-1], size) for number, (part, size) in enumerate(parts, 1))
    yield Table.described(groups, "group", "from", "to", "bytes||bytes", title="optimal groups")
    if found.caps_bytes is not None:
        yield f"DistributedDataParallel(model, bucket_cap_mb_list={found.bucket_caps_mb})"


def _epochs(found: "Epochs") -> Iterator[Block]:
    exact = found.measured[0]
    medians = [{one.workers: one.median for one in each.measurements} for each in found.measured]
    rows: list[tuple[Any, ...]] = []
    for workers in medians[0]:
        cells = (row.get(workers, "-") for row in medians)
        rows.append((workers, *("not reached" if cell is None else cell for cell in cells)))
    factors = [each.factor(exact) for each in found.measured]
    rows.append(("÷ exact", *("-" if factor is None else f"{factor:.3g}" for factor in factors)))
    yield Table.described(rows, "mini-batches", *(each.label for each in found.measured), title="epochs to the goal")


def _fit(found: "Fit") -> Iterator[Block]:
    serving = found.serving
    rows = []
    for share in found.shares:
        names = (share.device, found.plan.topology.device(share.device).type)
        sizes = (share.weight_bytes, share.cache_bytes, share.capacity_bytes)
        experts = [int(name.split(".")[1]) for name in share.others if name.endswith(".experts")]
        others = [name for name in share.others if not name.endswith(".experts")]
        others += [f"experts of {_ranges(experts)}"] if experts else []
        rows.append((*names, _ranges(share.layers), ", ".join(others), *sizes, share.time_s))
    heads = ("device", "type", "layers", "others|besides", "weight_bytes|weights|bytes", "cache_bytes|cache|bytes")
    yield Table.described(rows, *heads, "capacity_bytes|memory|bytes", "time_s|time in a step|seconds")
    yield [
        (_OBJECTIVES[serving.objective], f"{format_seconds(found.value_s)}, {found.status}, gap {_percent(found.gap)}"),
        ("tokens per second", f"{found.tokens_per_s:.4g}"),
        ("prefill", f"{format_seconds(found.prefill_s)} for {serving.batch} x {serving.prompt} tokens"),
        ("binds", found.binds),
        ("context", f"{serving.context} of at most {found.max_context} tokens that fit"),
    ]
    splits = []
    for one in found.alternatives:
        slower = None if one.value_s is None or not found.value_s else one.value_s / found.value_s - 1
        name, layers = one.name.replace("_", " "), ", ".join(map(str, one.layers))
        splits.append((name, layers, one.value_s, slower, one.max_context))
    judged = ("name|other splits", "layers", "value_s|objective|seconds|does not fit", "slower|slower by|change")
    yield Table.described(splits, *judged, "max_context|longest context")
    yield Table.described(found.helps[:_HELPS], "change|would help", "value_s|objective|seconds", "gain||percent")
    yield from found.notes


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in a row as ranges: ``0-3, 7``."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _exported(found: "Exported") -> Iterator[Block]:
    yield found.text
    if found.note:
        yield f"{found.note}: {_percent(found.loss)} slower"


_VIEWS: dict[str, Callable[[Any], Iterator[Block]]] = {
    "OpGraph": _graph,
    "Topology": _topology,
    "Plan": _plan,
    "Result": _result,
    "Comparison": _comparison,
    "SplitResult": _split_result,
    "SplitChoice": _split_choice,
    "PipelinePlan": _pipeline,
    "HybridPlan": _hybrid,
    "Explanation": _explanation,
    "WhatWouldHelp": _what_would_help,
    "PinnedPlan": _pinned,
    "Run": _run,
    "OnnxReport": _onnx_report,
    "Selftest": _selftest,
    "Fit": _fit,
    "Exported": _exported,
    "Batches": _batches,
    "dict": _figures,
    "Groups": _groups,
    "Epochs": _epochs,
}
"""Class → its view; by name, as loading all packages to show a graph would take a second."""
