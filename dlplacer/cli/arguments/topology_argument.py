"""The TOPOLOGY argument of commands that plan."""

import sys

from dlplacer.core.topology import Topology


def topology_to_plan_for(name: str) -> Topology:
    """The topology in a file, or one that ships; what it leaves open is told on stderr."""
    from dlplacer.files.load import load_topology
    from dlplacer.machines.importers.products import notes_on

    topology = load_topology(name)
    for note in notes_on(topology):
        print(f"dlplacer: {note}", file=sys.stderr)
    return topology
