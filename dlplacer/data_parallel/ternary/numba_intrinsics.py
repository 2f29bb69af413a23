"""Two expressions of the encoder in the compiler's own arithmetic, on 32-bit words throughout.

In numba's, uint32 times uint32 is 64 bits wide, and so would be the vectors: half as fast with AVX2.
"""

from collections.abc import Callable
from typing import cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dlplacer.data_parallel.ternary.random_keys import DRAW_BITS, FIRST, SECOND, SPREAD


def _draw(typing, index, key_0, key_1):  # type: ignore[no-untyped-def]
    """Element `index` of the stream of a key: a float32 in 0 … 2^24 − 1."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        word = ir.IntType(32)
        index, key_0, key_1 = arguments

        def folded(value: ir.Value, bits: int) -> ir.Value:
            return cast(ir.Value, builder.xor(value, builder.lshr(value, ir.Constant(word, bits))))

        value = builder.add(builder.mul(builder.trunc(index, word), ir.Constant(word, SPREAD)), key_0)
        value = builder.xor(builder.mul(folded(value, 16), ir.Constant(word, FIRST)), key_1)
        value = folded(builder.mul(folded(value, 15), ir.Constant(word, SECOND)), 16)
        return builder.sitofp(builder.lshr(value, ir.Constant(word, 32 - DRAW_BITS)), ir.FloatType())

    return types.float32(types.int64, types.uint32, types.uint32), generate


def _code(typing, kept, negative, shift):  # type: ignore[no-untyped-def]
    """The bits of a code in place: 00 for 0, 01 for 1, 10 for −1."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        word = ir.IntType(32)
        kept, negative, shift = arguments
        sign = builder.select(negative, ir.Constant(word, 2), ir.Constant(word, 1))
        return builder.shl(builder.select(kept, sign, ir.Constant(word, 0)), shift)

    return types.uint32(types.boolean, types.boolean, types.uint32), generate


draw = cast(Callable[[int, np.uint32, np.uint32], np.float32], intrinsic(_draw))
code = cast(Callable[[bool, bool, np.uint32], np.uint32], intrinsic(_code))
