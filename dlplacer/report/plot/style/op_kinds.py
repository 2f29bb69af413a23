"""Kinds of ops, as pictures speak of them."""

from dlplacer.core.op import Op

_STORAGE = frozenset({"parameter", "buffer", "input", "constant", "tangent", "gradient", "mutation"})
_SHORT = {
    "convolution": "conv",
    "convolution_backward": "conv bwd",
    "max_pool2d_with_indices": "maxpool",
    "max_pool2d_with_indices_backward": "maxpool bwd",
    "native_batch_norm_legit_functional": "bn",
    "native_batch_norm_backward": "bn bwd",
    "threshold_backward": "relu bwd",
    "native_layer_norm": "ln",
    "native_layer_norm_backward": "ln bwd",
}


def computes(op: Op) -> bool:
    """True if the op is more than a place where a tensor is kept, which may have a small measured time too."""
    return op.kind not in _STORAGE


def short_kind(kind: str) -> str:
    """``aten.convolution`` → ``conv``: the kind without its namespace, in a few letters where that is usual."""
    name = kind.rsplit(".", 1)[-1].strip("_")
    return _SHORT.get(name, name.replace("_backward", " bwd"))
