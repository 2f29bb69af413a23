"""Entry point of pipeline planning: the best pipeline for a graph on a machine."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_bytes
from dlplacer.planning.pipeline.blocks import STAGE_INPUTS, Cuts, cuts_of, require_stages
from dlplacer.planning.pipeline.pipeline_plan import Hop, PipelinePlan, Stage, TiedStages, play
from dlplacer.planning.pipeline.pipeline_workload import (
    DeviceChain,
    PipelineWorkload,
    batch_of,
    batch_sizes,
    chains_of,
    mixing_warnings,
)
from dlplacer.planning.pipeline.schedules import SCHEDULES, Order, in_flight, order_of
from dlplacer.planning.pipeline.stage_split import SplitProblem, StageSplit, best_split, least_memory_bytes


def evaluated(
    work: PipelineWorkload, problem: SplitProblem, split: StageSplit, order: Order, schedule: str
) -> PipelinePlan:
    """The plan of a split: every stage's times, memory and transfers, and the timeline simulated from them."""
    # The first stage whose border contains the block.
    stage_of_block = problem.cuts.inside[list(split.borders)].argmax(axis=0).tolist()
    stages = tuple(_stages(work, problem, split, stage_of_block))
    timeline = play(order, stages, _hops(problem, split), _ties(work, problem, stage_of_block))
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
        warnings=mixing_warnings(work.graph, problem.micro_batches),
    )


def _stage_of_later(work: PipelineWorkload, stage_of_block: Sequence[int]) -> dict[int, int]:
    """Backward or optimizer op → the stage of its block, or an earlier stage that computes a gradient that it reads.

    The order of the blocks is one of several, so the later of two blocks may be in the earlier stage. Gradients pass
    from stage to stage in only one direction.
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


def _stages(
    work: PipelineWorkload, problem: SplitProblem, split: StageSplit, stage_of_block: Sequence[int]
) -> Iterator[Stage]:
    graph, share = work.graph, 1 / problem.micro_batches
    stage_of_later = _stage_of_later(work, stage_of_block)
    leading = _leading(work, stage_of_later)
    borders, last = (0, *split.borders), problem.stages - 1

    def ids(ops: Iterable[int]) -> tuple[str, ...]:
        return tuple(graph.ops[op].id for op in ops)

    for number in range(problem.stages):
        times = work.times(problem.device(number).type, problem.micro_batches)
        own = (members for members, stage in zip(work.blocks.members, stage_of_block, strict=True) if stage == number)
        ahead = sorted(op for members in own for op in members)
        behind = [op for op, stage in stage_of_later.items() if stage == number]
        backward = [op for op in behind if graph.ops[op].phase == "backward"]
        updates = [op for op in behind if graph.ops[op].phase == "optimizer"]
        for_weights = [op for op in backward if op not in leading]
        yield Stage(
            device=problem.device(number).id,
            ops=ids(sorted(ahead, key=work.rank.__getitem__)),
            forward_s=sum(times[op] for op in ahead),
            backward_s=sum(times[op] for op in backward),
            weight_s=sum(times[op] for op in for_weights),
            update_s=sum(times[op] for op in updates),
            held=problem.held[number],
            memory_bytes=round(problem.memory_bytes(number)[borders[number], borders[number + 1]]),
            sends_bytes=0 if number == last else round(share * problem.cuts.forward_bytes[borders[number + 1]]),
            returns_bytes=0 if number == last else round(share * problem.cuts.backward_bytes[borders[number + 1]]),
            later=(ids(op for op in backward if op in leading), ids(for_weights), ids(updates)),
        )


def _leading(work: PipelineWorkload, stage_of_op: Mapping[int, int]) -> set[int]:
    """Backward ops that an earlier stage waits for; the others serve only the weights of their own stage."""
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
    """Weights that a stage reads from another, each once for every reading stage."""
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


_MOST_PER_DEVICE = 16
_MOST_PLAYED = 4


def plan_pipeline(
    graph: OpGraph,
    topology: Topology,
    *,
    stages: int | None = None,
    micro_batches: int | None = None,
    schedule: str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> PipelinePlan:
    """The pipeline of least predicted step time.

    Raises InfeasibleError, with the least bytes that the fullest stage needs, if no split fits into the memories.
    """
    search = Search(graph, topology)
    ranks = [stages] if stages is not None else range(2, max(2, len(topology.devices)) + 1)
    names = [schedule] if schedule is not None else list(SCHEDULES)
    if not search.blocks.trains:
        names = names[:1] if schedule is not None else ["gpipe"]
    sizes = batch_sizes(graph)
    if micro_batches is not None and micro_batches > 0 and sizes and all(size % micro_batches for size in sizes):
        raise InputError(
            f"{micro_batches} micro-batches of a batch of {sizes[0]}; they must be equal: use a divisor of {sizes[0]}"
        )
    choices = [
        (rank_count, count, name)
        for rank_count in ranks
        for count in ([micro_batches] if micro_batches is not None else batch_parts(graph, rank_count))
        for name in names
    ]
    best: PipelinePlan | None = None
    reason: InfeasibleError | None = None
    whole_rounds = [choice for choice in choices if choice[2] != "interleaved" or choice[1] % max(1, choice[0]) == 0]
    tried = whole_rounds or choices[:1]
    for number, choice in enumerate(tried):
        on_progress(number, len(tried))
        try:
            found = search.plan(*choice)
        except InfeasibleError as error:
            reason = reason or error
            continue
        if best is None or found.step_s < best.step_s:
            best = found
    if best is None:
        raise reason or InputError("no number of stages or micro-batches to try; give --stages and --micro-batches")
    return best


def batch_parts(graph: OpGraph, ranks: int) -> list[int]:
    """Numbers of micro-batches worth trying: divisors of the batch size if it is known, else powers of two."""
    batch = batch_of(graph)
    most = _MOST_PER_DEVICE * ranks
    if batch is None:
        return [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= most]
    return [count for count in range(1, min(batch, most) + 1) if batch % count == 0]


class Search:
    """A graph on a machine, prepared once for all numbers of stages and micro-batches."""

    def __init__(self, graph: OpGraph, topology: Topology) -> None:
        if graph.constraints:
            raise InputError("a pipeline does not support pins or colocated ops; drop them, or place ops instead")
        self.work = PipelineWorkload(graph, topology)
        self.graph, self.topology, self.blocks = self.work.graph, topology, self.work.blocks
        self._chains: dict[tuple[int, bool], tuple[list[DeviceChain], bool]] = {}

    @cached_property
    def cuts(self) -> Cuts:
        """The cuts that may separate stages."""
        return cuts_of(self.blocks)

    def plan(self, ranks: int, micro_batches: int, schedule: str) -> PipelinePlan:
        """The best pipeline over `ranks` devices with a schedule."""
        order = order_of(schedule, ranks, micro_batches, self.blocks.trains)
        problems, all_tried = self.problems(order, micro_batches)
        found = [(problem, best_split(problem)) for problem in problems]
        splits = [(problem, split) for problem, split in found if split is not None]
        if not splits:
            raise InfeasibleError(self._no_room(problems))
        wraps = len(problems[0].held) > ranks

        def estimate(found: tuple[SplitProblem, StageSplit]) -> tuple[float, int]:
            problem, split = found
            return (micro_batches - 1) * split.bottleneck_s + split.sum_s, len(problem.chain.shared(wraps))

        splits.sort(key=estimate)
        name = schedule if self.blocks.trains else "forward"
        exact = all_tried and self.cuts.exact and not wraps
        plans = [evaluated(self.work, problem, split, order, name) for problem, split in splits[:_MOST_PLAYED]]
        best = min(plans, key=lambda plan: plan.step_s)
        return best if exact else replace(best, exact=False)

    def problems(self, order: Order, micro_batches: int) -> tuple[list[SplitProblem], bool]:
        """A split problem for each sequence of devices worth trying, and whether these cover all sequences."""
        held = in_flight(order)
        require_stages(self.blocks, len(held))
        key = len(order), len(held) > len(order)
        if key not in self._chains:
            self._chains[key] = chains_of(self.work.wiring, *key)
        chains, all_tried = self._chains[key]
        compute = {
            kind: self.cuts.total(self.work.block_s(self.work.times(kind, micro_batches)))
            for kind in self.topology.device_types
        }
        holds = [held[stage] for stage in range(len(held))]
        problems = [SplitProblem(self.cuts, chain, compute, micro_batches, holds) for chain in chains]
        return problems, all_tried

    def _no_room(self, problems: Sequence[SplitProblem]) -> str:
        problem = problems[0]
        need = format_bytes(min(map(least_memory_bytes, problems)))
        largest = max(self.topology.devices, key=lambda device: device.memory_bytes or 0)
        each = problem.stages // len(problem.chain.devices)
        part = f" into 1/{each} of its device per stage" if each > 1 else ""
        return (
            f"no split into {problem.stages} stages fits{part}: in the best one the fullest stage needs {need} with "
            f"{max(problem.held)} of {problem.micro_batches} micro-batches in flight, and the largest device "
            f"{largest.id!r} has {format_bytes(largest.memory_bytes or 0)}; use more stages, more micro-batches, or "
            "the schedule 1f1b"
        )
