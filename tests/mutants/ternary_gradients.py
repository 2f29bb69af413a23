"""Mutants of ternary gradients."""

from mutants.mutant import Mutant

_ROOM = "data_parallel/ternary"
_KERNELS = (f"{_ROOM}/test_kernels.py",)
_STATE = (f"{_ROOM}/test_state.py",)
_HOOK = (f"{_ROOM}/test_hook.py",)

TERNARY = (
    Mutant(
        f"{_ROOM}/kernels/numba_kernels.py",
        "squares are taken in float32, where they vanish or overflow",
        "value = np.float64(values[index])",
        "value = values[index]",
        _KERNELS,
    ),
    Mutant(
        f"{_ROOM}/kernels/numba_kernels.py",
        "tensors far from zero are clipped all the same",
        "if deviation == 0 or abs(mean) > deviation else",
        "if deviation == 0 else",
        _KERNELS,
    ),
    Mutant(
        f"{_ROOM}/kernels/numba_kernels.py",
        "a shared scaler leaves gradients unclipped",
        "kept = draw(base + lane, key_0, key_1) * unit < min(abs(value), limit) * up",
        "kept = draw(base + lane, key_0, key_1) * unit < abs(value) * up",
        _KERNELS,
    ),
    Mutant(
        f"{_ROOM}/kernels/numba_kernels.py",
        "the second half of a part stands where the first does",
        "shift = np.uint32(2 * place + part % 2)",
        "shift = np.uint32(2 * place)",
        _KERNELS,
    ),
    Mutant(
        f"{_ROOM}/kernels/numba_intrinsics.py",
        "half of a key is not used",
        "builder.xor(builder.mul(folded(value, 16), ir.Constant(word, FIRST)), key_1)",
        "builder.mul(folded(value, 16), ir.Constant(word, FIRST))",
        _KERNELS,
    ),
    Mutant(
        f"{_ROOM}/kernels/random_keys.py",
        "all ranks draw the same numbers",
        'struct.pack("<qqq", seed, step, rank)',
        'struct.pack("<qqq", seed, step, 0)',
        _KERNELS,
    ),
    Mutant(
        f"{_ROOM}/parameter_names.py",
        "a shared last weight is coded",
        "last = frozenset(names[id(parameter)] for parameter in own)",
        "last = frozenset(names[id(parameter)] for parameter in own if parameter.dim() == 1)",
        _STATE,
    ),
    Mutant(
        f"{_ROOM}/transport_choice.py",
        "sums come back for nothing",
        "+ gather.time_s((ranks - 1) * parts.returned_bytes)",
        "+ gather.latency_s",
        _STATE,
    ),
    Mutant(
        f"{_ROOM}/state.py",
        "every bucket is a step",
        "if bucket.is_last():",
        "if True:",
        _HOOK,
    ),
    Mutant(
        f"{_ROOM}/state.py",
        "a checkpoint's steps are not taken up",
        'self.steps = loaded["steps"]',
        "self.steps = 0",
        _STATE,
    ),
    Mutant(
        f"{_ROOM}/gather_transport.py",
        "tensors in full precision keep this rank's gradient",
        "codec.place_whole(mean_of_rows(rows.whole), flat)",
        "codec.place_whole(rows.whole[codec.group.rank()], flat)",
        _HOOK,
    ),
    Mutant(
        f"{_ROOM}/ordered_thread.py",
        "two threads share the collectives of one group",
        "self.group = made",
        "self.group = group",
        _HOOK,
    ),
)
