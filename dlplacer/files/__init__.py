"""JSON in and out: graphs, topologies and plans, with every mistake listed by its path."""

from dlplacer.files.graph_file import graph_to_dict, read_graph
from dlplacer.files.load import locate, write_graph, write_plan, write_topology
from dlplacer.files.plan_file import plan_to_dict, read_plan
from dlplacer.files.text import write_json, write_text
from dlplacer.files.topology_file import read_topology, topology_to_dict

__all__ = [
    "graph_to_dict",
    "locate",
    "plan_to_dict",
    "read_graph",
    "read_plan",
    "read_topology",
    "topology_to_dict",
    "write_graph",
    "write_json",
    "write_plan",
    "write_text",
    "write_topology",
]
