"""Processes that issue ops, for the devices of any machine."""

from dataclasses import replace
from random import Random

from dlplacer.core.topology import Topology


def with_hosts(topology: Topology, random: Random) -> Topology:
    """The machine with processes that issue ops, in whole seconds, some of them for several devices."""
    shared = random.choice([0, 2, 3])
    kinds = random.choice([(True,), (False,), (True, False)])

    def hosted(number: int) -> dict[str, object]:
        together = number < shared
        # Among devices that share a process, issues of no time could go in any order.
        return {
            "dispatch_s": float(random.randint(together, 2)),
            "process": "host" if together else "",
            "asynchronous": random.choice(kinds),
        }

    devices = tuple(
        replace(device, **hosted(number))  # type: ignore[arg-type]
        for number, device in enumerate(topology.devices)
    )
    return replace(topology, devices=devices)
