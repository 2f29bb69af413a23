"""LSTMs as oneDNN's kernel for all steps of a layer, which plain PyTorch runs on CPUs, in place of products."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

FUSED_LSTM = "fused-lstm"
"""Name of the rewrite."""
FORWARD, BACKWARD = torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.mkldnn_rnn_layer_backward.default
_LSTM_MODE = 2  # ideep::rnn_kind::LSTM
_WORKSPACE = 3
_ARGUMENTS = 9


def fuse_lstms(module: fx.GraphModule) -> None:
    """Replace the LSTMs of a captured module by the fused kernel that plain PyTorch uses.

    If any region of the step uses autocast, all LSTMs stay as they are, because autocast decides their dtype.
    """
    for node in module.graph.nodes:
        # The arguments are device type, dtype, whether it is on, …
        if getattr(node.target, "__name__", "") == "_enter_autocast" and (len(node.args) < 3 or node.args[2]):
            return
    for node in module.graph.find_nodes(op="call_function", target=torch.lstm):
        args = fx.map_arg(node.args, lambda read: read.meta.get("example_value"))
        # A packed sequence has its lengths in the place of the states.
        if len(args) == _ARGUMENTS and not node.kwargs and isinstance(args[1], (tuple, list)):
            # The kernel is for float32, and for no projections.
            data, states, weights = args[:3]
            floats = all(getattr(each, "dtype", None) is torch.float32 for each in (data, *states, *weights))
            same_width = floats and data.numel() > 0 and states[0].shape[2] == states[1].shape[2]
            if torch._C._has_mkldnn and same_width:
                node.target = lstm
    module.recompile()


def lstm(
    data: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], *given: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result of ``torch.lstm``, by the calls that it makes on CPUs (``aten/src/ATen/native/mkldnn/RNN.cpp``)."""
    has_biases, layers, dropout, train, bidirectional, batch_first = given
    directions, per_layer = 1 + bidirectional, 2 + 2 * has_biases
    data = (data.transpose(0, 1) if batch_first else data).contiguous()
    hidden, cells = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            own = list(weights[per_layer * place : per_layer * (place + 1)])
            if not has_biases:
                own += [torch.zeros_like(weight) for weight in own]
            begin = [state[place].contiguous() for state in states]
            output, last, cell, _ = FORWARD(
                data, *own, *begin, direction == 1, [], _LSTM_MODE, begin[0].shape[1], layers, has_biases,
                bidirectional, batch_first, train,
            )  # fmt: skip
            outputs.append(output)
            hidden.append(last)
            cells.append(cell)
        data = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < layers - 1:
            data = torch.dropout(data, dropout, train=True)
    return data.transpose(0, 1) if batch_first else data, torch.stack(hidden), torch.stack(cells)


def run_forward(*args: Any) -> Any:
    """The kernel as the autograd engine calls it: without gradients enabled it leaves no workspace for its backward."""
    with torch.enable_grad():
        return FORWARD(*(entry.detach() if isinstance(entry, torch.Tensor) else entry for entry in args))


def set_workspaces(graph: fx.Graph) -> None:
    """Give workspaces a stand-in of about their size: torch's stand-ins for them are empty.

    It keeps the gates, four of the output's size, and states several times, padded: measured with oneDNN 3.12 at 1 to
    128 sequences of 1 to 25 steps and widths up to 1024, within 7 % and pages.
    """
    for node in graph.find_nodes(op="call_function", target=FORWARD):
        if node.args[-1]:
            values = list(node.meta["val"])
            steps, batch, width = values[0].shape
            size = 28_672 + round(4 * batch * width * (15.5 * steps + 4))
            values[_WORKSPACE] = values[_WORKSPACE].new_empty(size)
            node.meta["val"] = tuple(values)
            for user in node.users:
                if user.args[1] == _WORKSPACE:
                    user.meta["val"] = values[_WORKSPACE]


def lstm_flops(data: torch.Tensor, output: torch.Tensor) -> int:
    """FLOPs of a layer: four gates of the width of its output, from its input and from its own state."""
    return 2 * output.numel() * 4 * (data.shape[-1] + output.shape[-1])
