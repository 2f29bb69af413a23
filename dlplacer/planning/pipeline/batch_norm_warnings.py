"""Ops whose result depends on the whole batch: with micro-batches they compute something else."""

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op

_ALWAYS_EVALUATES = "no_training"
_TRAINING_ARGUMENT = 5


def mixing_warnings(graph: OpGraph, micro_batches: int) -> tuple[str, ...]:
    """What so many micro-batches change in the results of a step, a text for each; empty if nothing is known to change.

    Batch norm in training mode takes mean and variance over the samples that it sees: those of one micro-batch. Its
    outputs, gradients and running statistics then differ from those of a step on the whole batch.
    """
    norms = list({op.origin or op.id: op for op in graph.ops if _is_training_batch_norm(op)}.values())
    if micro_batches < 2 or not norms:
        return ()
    more = f" and {len(norms) - 1} more" if len(norms) > 1 else ""
    return (
        f"batch norm {norms[0].module or norms[0].id!r}{more} will see one of {micro_batches} micro-batches at a time, "
        "not the batch: losses, gradients and running statistics change; use group norm, or micro-batches that are "
        "large enough by themselves",
    )


def _is_training_batch_norm(op: Op) -> bool:
    if "batch_norm" not in op.kind or "backward" in op.kind or _ALWAYS_EVALUATES in op.kind:
        return False
    arguments = op.attrs.get("args", ())
    return op.phase in (None, "forward") and not (
        len(arguments) > _TRAINING_ARGUMENT and arguments[_TRAINING_ARGUMENT] is False
    )
