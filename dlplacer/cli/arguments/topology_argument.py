"""The TOPOLOGY argument of commands that plan."""

import sys

from dlplacer.core.topology import Topology


def topology_to_plan_for(name: str) -> Topology:
    """The topology in a file, or one that ships; memory of GPUs that it leaves unlimited is told on stderr."""
    from dlplacer.files.load import load_topology
    from dlplacer.machines.importers.products import unlimited_gpus

    topology = load_topology(name)
    note = unlimited_gpus(topology)
    if note is not None:
        print(f"dlplacer: {note}", file=sys.stderr)
    return topology
