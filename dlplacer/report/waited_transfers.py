"""The transfers that hold a recorded step up."""

from dataclasses import replace

from dlplacer.core.plan import Plan, Transfer, TransferSegment


def waited_for(predicted: Plan, measured: Plan) -> tuple[Transfer, ...]:
    """The transfers of a plan that a device waited for in a step that ran, each as long as it was waited for.

    That is until the reader begins, from the moment at which the producer has ended and the reader's device is free. Of
    the tensors that an op reads from other devices, it waited for the one whose producer ended last. What arrives while
    the device works costs no time, and when it does is not recorded.
    """
    sent = {(transfer.tensor, transfer.target): transfer for transfer in predicted.transfers}
    found = []
    for device, order in measured.order.items():
        free_s = 0.0
        for op in order:
            reader = measured.scheduled[op]
            read = [sent[key] for edge in predicted.graph.edges_into[op] if (key := (edge.tensor, device)) in sent]
            if read and reader.start_s > free_s:
                last = max(read, key=lambda transfer: measured.scheduled[transfer.source].end_s)
                # The clocks of two processes agree to microseconds only, so a reader may seem to start too early.
                begin_s = min(max(measured.scheduled[last.source].end_s, free_s), reader.start_s)
                parts = tuple(TransferSegment(part.route, begin_s, reader.start_s) for part in last.segments)
                found.append(replace(last, segments=parts))
            free_s = reader.end_s
    return tuple(sorted(found, key=lambda transfer: transfer.start_s))
