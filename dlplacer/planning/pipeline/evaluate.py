"""A split with all its numbers: stages timed, schedule played."""

from collections.abc import Iterable, Mapping, Sequence

from dlplacer.core.graph import OpGraph
from dlplacer.planning.pipeline.batch_norm_warnings import mixing_warnings
from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan, Stage
from dlplacer.planning.pipeline.pipeline_workload import PipelineWorkload
from dlplacer.planning.pipeline.schedule.action import Order
from dlplacer.planning.pipeline.schedule.pipeline_timeline import Hop, StageTimes, TiedStages, play
from dlplacer.planning.pipeline.stages.blocks import STAGE_INPUTS, binding_weight
from dlplacer.planning.pipeline.stages.stage_split import SplitProblem, StageSplit


def evaluated(
    work: PipelineWorkload, problem: SplitProblem, split: StageSplit, order: Order, schedule: str
) -> PipelinePlan:
    """The plan of a split: every stage's times, memory and transfers, and the schedule played with them."""
    stage_of_block = _stage_of_block(problem, split)
    stage_of_later = _stage_of_later(work, stage_of_block)
    stages = tuple(
        _stage(work, problem, split, stage_of_block, stage_of_later, number) for number in range(problem.stages)
    )
    times = [StageTimes(stage.forward_s, stage.backward_s, stage.weight_s, stage.update_s) for stage in stages]
    timeline = play(order, times, _hops(problem, split), _ties(work, problem, stage_of_block))
    return PipelinePlan(
        name=work.graph.name,
        stages=stages,
        schedule=schedule,
        micro_batches=problem.micro_batches,
        order=order,
        timeline=timeline,
        exact=True,
        bottleneck_s=split.bottleneck_s,
        single_device_s=work.single_device_s,
        warnings=(*mixing_warnings(work.graph, problem.micro_batches), *_binding(work, problem)),
    )


def _stage_of_block(problem: SplitProblem, split: StageSplit) -> list[int]:
    inside = problem.cuts.inside
    return [
        next(number for number, border in enumerate(split.borders) if inside[border, block])
        for block in range(len(problem.cuts.blocks.members))
    ]


def _stage_of_later(work: PipelineWorkload, stage_of_block: Sequence[int]) -> dict[int, int]:
    """Backward or optimizer op → the stage of its block, or an earlier one that a gradient which it reads comes from.

    Blocks stand in one order of those that there are, so that of two blocks the later one may be in the earlier stage;
    gradients pass from stage to stage one way alone.
    """
    graph = work.graph
    stage_of: dict[int, int] = {}
    held = graph.constraints.names
    home = {op: stage for ops, stage in zip(work.blocks.backward, stage_of_block, strict=True) for op in ops}
    for name in graph.topological_order:
        op = graph.index[name]
        if op in home:
            read = [graph.index[edge.source] for edge in graph.edges_into[name]]
            free = graph.ops[op].colocate is None and name not in held
            stage_of[op] = min([home[op], *(stage_of[at] for at in read if free and at in stage_of)])
    return stage_of


def _stage(
    work: PipelineWorkload,
    problem: SplitProblem,
    split: StageSplit,
    stage_of_block: Sequence[int],
    stage_of_later: Mapping[int, int],
    number: int,
) -> Stage:
    blocks, graph = problem.cuts.blocks, work.graph
    device = problem.chain.devices[number % len(problem.chain.devices)]
    times = work.times(device.type, problem.micro_batches)
    own = [block for block, stage in enumerate(stage_of_block) if stage == number]
    ahead = sorted(op for block in own for op in blocks.members[block])
    behind = [op for op, stage in stage_of_later.items() if stage == number]
    backward = [op for op in behind if graph.ops[op].phase == "backward"]
    updates = [op for op in behind if graph.ops[op].phase == "optimizer"]
    leading = _leading(work, stage_of_later)
    for_weights = [op for op in backward if op not in leading]
    later = ([op for op in backward if op in leading], for_weights, updates)
    before = split.borders[number - 1] if number else 0
    behind_border = split.borders[number]
    share = 1 / problem.micro_batches
    last = number == problem.stages - 1
    return Stage(
        device=device.id,
        ops=tuple(graph.ops[op].id for op in sorted(ahead, key=work.rank.__getitem__)),
        forward_s=sum(times[op] for op in ahead),
        backward_s=sum(times[op] for op in backward),
        weight_s=sum(times[op] for op in for_weights),
        update_s=sum(times[op] for op in updates),
        held=problem.held[number],
        memory_bytes=round(problem.memory_bytes(number)[before, behind_border]),
        sends_bytes=0 if last else round(share * problem.cuts.forward_bytes[behind_border]),
        returns_bytes=0 if last else round(share * problem.cuts.backward_bytes[behind_border]),
        later=_ids(graph, later),
    )


def _ids(graph: OpGraph, groups: Iterable[Iterable[int]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(graph.ops[op].id for op in group) for group in groups)


def _leading(work: PipelineWorkload, stage_of_op: Mapping[int, int]) -> set[int]:
    """Backward ops that an earlier stage waits for; the others are for the weights of their own stage alone."""
    graph = work.graph
    leading: set[int] = set()
    for name in reversed(graph.topological_order):
        at = graph.index[name]
        if at in stage_of_op and graph.ops[at].kind not in STAGE_INPUTS:
            targets = [graph.index[edge.target] for edge in graph.edges_from[name]]
            if any(
                target in leading or stage_of_op.get(target, stage_of_op[at]) < stage_of_op[at] for target in targets
            ):
                leading.add(at)
    return leading


def _hops(problem: SplitProblem, split: StageSplit) -> list[Hop]:
    hops = []
    for stage in range(1, problem.stages):
        there, back = problem.transfers_s(stage)
        border, rank = split.borders[stage - 1], (stage - 1) % len(problem.chain.devices)
        directions = problem.chain.forward_directions[rank], problem.chain.backward_directions[rank]
        hops.append(Hop(float(there[border]), float(back[border]), *directions))
    return hops


def _ties(work: PipelineWorkload, problem: SplitProblem, stage_of_block: Sequence[int]) -> list[TiedStages]:
    """Weights that stages read of each other, each once for every stage that does."""
    devices = [problem.device(stage).id for stage in range(problem.stages)]
    found = []
    for tie in problem.cuts.blocks.ties:
        home = stage_of_block[tie.home]
        for reader in sorted({stage_of_block[block] for block in tie.readers} - {home}):
            line = work.wiring.channel(devices[home], devices[reader])
            there_s, back_s = (
                line.latency_s + line.s_per_byte * size if size else 0.0 for size in (tie.bytes, tie.gradient_bytes)
            )
            found.append(TiedStages(home, reader, there_s, back_s))
    return found


def _binding(work: PipelineWorkload, problem: SplitProblem) -> tuple[str, ...]:
    """The weight that holds more of the step in one stage than an equal share, where one does."""
    seconds = work.block_s(work.times(problem.device(0).type, problem.micro_batches))
    largest = int(seconds.argmax())
    held_s, whole_s = float(seconds[largest]), float(seconds.sum())
    name = binding_weight(work.blocks, largest)
    if name is None or held_s * problem.stages <= whole_s:
        return ()
    return (
        f"{name} is read from first to last by ops that take {100 * held_s / whole_s:.0f} % of the step and "
        f"stay in one stage, so that no split is faster than {whole_s / held_s:.2f}x; give its layers their own, "
        "or place ops instead",
    )
