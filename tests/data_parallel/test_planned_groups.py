"""Planning from a job: the engine's own order, modules that can hold parameters, graphs without a job, mistakes."""

from itertools import pairwise

import pytest
from data_parallel.model_zoo import ZOO

from dlplacer.core.topology import Device, Link, Topology
from dlplacer.data_parallel.groups.captured_chain import chain_of, gradients_of, serial_clock
from dlplacer.data_parallel.groups.ddp_buckets import built_buckets
from dlplacer.data_parallel.groups.layer_chain import best_groups
from dlplacer.frontend import Job
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.machines.costs.roofline_times import with_times

RATES = {"flops_per_s": 1e10, "memory_bytes_per_s": 1e9}
PAIR = Topology(
    (Device("cpu0", "box", **RATES), Device("cpu1", "box", **RATES)), (), (Link("cpu0", "cpu1", 1e8, 1e-5),)
)
SOME = ("branches", "tied", "gpt", "gnmt", "siamese")


def real_order(job: Job) -> tuple[str, ...]:
    """In which order a real backward pass finishes gradients."""
    found: list[str] = []
    for name, parameter in job.module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: found.append(name))
    assert job.loss is not None
    job.loss(job.module(*job.args), *job.targets).backward()
    return tuple(found)


@pytest.mark.parametrize("name", SOME)
def test_the_order_of_gradients_is_the_engine_s(name: str) -> None:
    job = ZOO[name]()
    assert job.parameter_uses().gradient_order == real_order(job)


def test_holders_are_where_parameters_are_used() -> None:
    # The head's weight is the embedding's; an attention reads the weights of its output projection itself; positions
    # belong to the model; everything else is used by the module that owns it.
    holders = ZOO["gpt"]().parameter_uses().holders
    assert holders["words.weight"] == holders["positions"] == ""
    assert holders["layers.0.self_attn.out_proj.weight"] == "layers.0.self_attn"
    assert holders["layers.0.linear1.weight"] == "layers.0.linear1"
    # What is called twice would be gathered twice: the model holds it.
    uses = ZOO["siamese"]().parameter_uses()
    assert set(uses.holders.values()) == {"", "head"}
    assert uses.calls == ("", "head")
    assert ZOO["unused"]().parameter_uses().unused == ("second.weight", "second.bias")


@pytest.mark.parametrize("name", SOME[:2])
def test_caps_of_a_graph_alone_build_its_groups(name: str) -> None:
    job = ZOO[name]()
    graph = with_times(job.capture(), PAIR)
    clock_s = serial_clock(graph, "box", "backward")
    total_s = max(end_s for _, end_s in clock_s.values())
    size = sum(op.weight_bytes for op in graph.ops if op.kind == "parameter")
    chain = chain_of(graph, "box", AlphaBeta(total_s / 20, total_s / size), "backward")
    groups = [range(before, last) for before, last in pairwise((0, *best_groups(chain)))][::-1]
    caps = [sum(chain.bytes[layer] for layer in group) for group in groups]
    built = built_buckets(gradients_of(graph, job.parameter_uses(), clock_s), caps)
    owners = [{graph.op(parameter).module or parameter for parameter in bucket.names} for bucket in built]
    assert owners == [{chain.names[layer] for layer in group} for group in groups]
    assert len(groups) > 1
