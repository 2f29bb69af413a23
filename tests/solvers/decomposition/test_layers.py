"""Equal layers one after another: solved once, and put together so that each begins where the last one ended."""

from itertools import combinations

from solvers.helpers import one_worker

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.decomposition.sections import find_sections
from dlplacer.solvers.decomposition.series import SectionChain
from dlplacer.solvers.instance.instance import Instance, build_instance


def _attention(count: int) -> Instance:
    """Layers of attention: a norm of 5, read by q, k and v of eight heads, all ops of 10; then the output.

    The norm's tensor takes 20 over the double links of four V100s in a DGX-1 and 40 over the single ones.
    """
    times, edges = {"norm0": 5.0}, []
    for layer in range(count):
        norm, after = f"norm{layer}", f"norm{layer + 1}"
        times |= {after: 5.0}
        for head in range(8):
            q, k, v, scores, result = (f"{part}{layer}.{head}" for part in ("q", "k", "v", "scores", "result"))
            times |= dict.fromkeys((q, k, v, scores, result), 10.0)
            edges += [Edge(norm, op, 40, tensor=norm) for op in (q, k, v)]
            edges += [Edge(q, scores, 5), Edge(k, scores, 5), Edge(scores, result, 10), Edge(v, result, 5)]
            edges += [Edge(result, after, 5)]
    devices = tuple(Device(f"d{number}") for number in range(4))
    double = {("d0", "d1"), ("d1", "d3"), ("d2", "d3")}
    links = tuple(Link(*pair, 2 if pair in double else 1) for pair in combinations([d.id for d in devices], 2))
    graph = OpGraph(tuple(Op(name, "test", time_s=time_s) for name, time_s in times.items()), tuple(edges))
    return build_instance(build_problem(graph, Topology(devices, (), links), Options()))


def test_a_layer_of_attention_is_bounded_within_a_tick_of_list_rules() -> None:
    instance = _attention(20)
    chain = _chain(instance)
    layer = chain.known[chain.series[5].instance].incumbent
    # Within 127.5 the norm's device runs it and 12 ops, and sends for 2.5 if the next norm is elsewhere. Others begin
    # at 25: where that norm is they run 10 ops, on two devices 9. A tick is 2.5. By work alone a layer takes 101.25.
    assert layer.best is not None
    assert (layer.bound, layer.best.makespan) == (51, 52)


def _chain(instance: Instance) -> SectionChain:
    last = max(range(instance.op_count), key=lower_bounds(instance).head.__getitem__)
    return SectionChain.of(instance, find_sections(instance, last), one_worker()).with_traffic()
