"""Heads and tails: ticks that must pass before an op starts and after it ends, by paths and delays alone."""

from dlplacer.solvers.instance import FAR, Delay, Instance


def path_heads(instance: Instance) -> list[int]:
    """[op] → a tick before which it cannot start.

    Proof: by eq. 10 an op starts after each of its predecessors has ended and its tensor has travelled, and the shortest
    duration and the least delay over all allowed devices are no longer than the true ones.
    """
    heads = [0] * instance.op_count
    least: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
    for op in instance.order:
        for source, delay in instance.predecessors[op]:
            key = id(delay), instance.allowed[source], instance.allowed[op]
            if key not in least:
                least[key] = least_delay(delay, key[1], key[2])
            heads[op] = max(heads[op], heads[source] + instance.shortest[source] + least[key])
    return heads


def communication_heads(instance: Instance) -> list[int]:
    """[op] → a tick before which it cannot start, by `path_heads` and by the work of its predecessors.

    Proof: let S be the predecessors on the op's own device. They run one after another there (eq. 12), so the op waits
    for the best one-machine schedule of S with their heads as release times, which takes them by rising head; and it
    waits for every other predecessor's head, duration and least delay between different devices. If S leaves out a
    predecessor, leaving out all that arrive no later cannot raise this; so the least value over the sets S made of the k
    latest arrivals, k = 0, 1, …, is valid. Predecessors that cannot be elsewhere belong to every S.
    """
    heads = path_heads(instance)
    cuts: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
    for op in instance.order:
        arcs = instance.predecessors[op]
        if not arcs:
            continue
        entries = []
        for source, delay in arcs:
            end = heads[source] + instance.shortest[source]
            heads[op] = max(heads[op], end)
            cut = cut_delay(instance, source, op, delay, cuts)
            entries.append((end + cut, heads[source], instance.shortest[source]))
        heads[op] = max(heads[op], _least_over_sets(entries))
    return _propagated(instance, heads)


def cut_delay(
    instance: Instance,
    source: int,
    target: int,
    delay: Delay,
    known: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int],
) -> int:
    """The least delay of an arc between two different devices; `FAR` if its ends cannot be apart."""
    if instance.block[source] == instance.block[target]:
        return FAR
    key = id(delay), instance.allowed[source], instance.allowed[target]
    if key not in known:
        known[key] = min((delay[a][b] for a in key[1] for b in key[2] if a != b), default=FAR)
    return known[key]


def least_delay(delay: Delay, sources: tuple[int, ...], targets: tuple[int, ...]) -> int:
    """The least delay over all pairs of allowed devices, 0 if they share one."""
    return min((delay[a][b] for a in sources for b in targets), default=0)


def _least_over_sets(entries: list[tuple[int, int, int]]) -> int:
    """Least of max(one-machine end of the k latest, arrival of the next) over k, for (arrival, head, ticks) entries."""
    entries.sort(reverse=True)
    least = entries[0][0]
    for count in range(1, len(entries) + 1):
        end = 0
        for head, ticks in sorted((head, ticks) for _, head, ticks in entries[:count]):
            end = max(end, head) + ticks
        arrival = entries[count][0] if count < len(entries) else 0
        least = min(least, max(end, arrival))
        if end >= least:
            break
    return least


def _propagated(instance: Instance, heads: list[int]) -> list[int]:
    for op in instance.order:
        for source, _ in instance.predecessors[op]:
            heads[op] = max(heads[op], heads[source] + instance.shortest[source])
    return heads
