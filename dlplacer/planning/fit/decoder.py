"""The parts of a decoder language model, with the weights, the cache and the work of every part in a step."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from dlplacer.core.errors import InputError
from dlplacer.core.record import Bytes, Count, Filled, Name, Number, OneOf, Record, record

KINDS = ("vision", "embedding", "attention", "mlp", "experts", "head")
Work = tuple[float, float, str]
"""Work of a kernel: FLOPs, bytes that are read or written, and the dtype of the arithmetic."""


@record(frozen=True, repr=False)
class CachedAttention(Record):
    """Attention over cached tokens.

    `widths`: Elements of a key and of a value that a head multiplies for each pair of tokens in a prefill. `cached`:
    Elements that the cache holds for each token: keys and values of all key-value heads, or a latent vector.
    `latent_widths`: The `widths` of a decode step if the heads read the latent vector itself (MLA); else None.
    `window`: Number of latest tokens that a token attends to; None for all.
    """

    heads: Count
    widths: tuple[int, ...]
    cached: Count
    latent_widths: tuple[int, ...] | None = None
    window: Count | None = None

    def span(self, context: int) -> int:
        """The number of tokens that the cache holds and a token attends to."""
        return context if self.window is None else min(context, self.window)


@record(frozen=True, repr=False)
class DecoderPart(Record):
    """A part of a layer, or a part before or after all layers, whose `layer` is None.

    `factors`: Elements of the matrices that multiply tokens, summed over all experts. `experts`, `chosen`: Numbers of
    all experts and of the experts that a token is sent to; 0 without experts.
    """

    kind: Annotated[str, OneOf(KINDS)]
    layer: Count | None
    modules: tuple[str, ...]
    weight_bytes: Bytes
    factors: Count = 0
    kernels: Count = 1
    experts: Count = 0
    chosen: Count = 0
    attention: CachedAttention | None = None


@dataclass(frozen=True)
class DecoderStep:
    """One step: `tokens` new tokens of each of `batch` sequences, with `context` tokens in the cache of each.

    `head_tokens`: New tokens of each sequence for which the head predicts the next token.
    """

    tokens: int
    context: int
    batch: int = 1
    head_tokens: int = 1
    cache_bits: float = 16.0


@record(frozen=True, repr=False)
class Decoder(Record):
    """A decoder-only language model, without its weights.

    `hidden`: Elements of the vector between layers. `widest`: Elements of the widest vector inside a layer.
    `tied_bytes`: Bytes of weights that embedding and head share, which `weight_bytes` counts once; 0 if they share
    none.
    """

    name: Name
    parts: Annotated[tuple[DecoderPart, ...], Filled()]
    hidden: Count
    widest: Count
    vocabulary: Count
    tied_bytes: Bytes = 0
    most_context: Count | None = None
    dtype: str = "bfloat16"
    activation_bytes: Annotated[int, Number(positive=True, whole=True)] = 2

    @cached_property
    def layers(self) -> int:
        """The number of layers."""
        return len({part.layer for part in self.parts if part.layer is not None})

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights; shared weights of embedding and head count once."""
        return sum(part.weight_bytes for part in self.parts) - self.tied_bytes

    def work(self, part: DecoderPart, step: DecoderStep) -> Iterator[Work]:
        """The kernels of a part in a step: the products with its weights, then its attention.

        Bytes include the mean share of experts in use if tokens choose uniformly; activations only for the embedding.
        """
        tokens = step.batch * (step.head_tokens if part.kind == "head" else step.tokens)
        if part.kind == "embedding":
            yield 0.0, 2.0 * tokens * self.hidden * self.activation_bytes, self.dtype
            return
        share, read = 1.0, 1.0
        if part.experts:
            share = part.chosen / part.experts
            read = 1 - (1 - share) ** tokens
        for _ in range(part.kernels):
            flops, moved = 2.0 * tokens * part.factors * share, part.weight_bytes * read
            yield flops / part.kernels, moved / part.kernels, self.dtype
        if part.attention is not None:
            yield self._attention_work(part.attention, step)

    def _attention_work(self, attention: CachedAttention, step: DecoderStep) -> Work:
        span = attention.span(max(step.context, step.tokens))
        widths = attention.widths
        if step.tokens == 1 and attention.latent_widths is not None:
            widths = attention.latent_widths
        flops = 2.0 * step.batch * step.tokens * span * attention.heads * sum(widths)
        return flops, step.batch * span * attention.cached * step.cache_bits / 8, self.dtype

    def cache_bytes(self, parts: Iterable[DecoderPart], serving: "Serving") -> int:
        """Bytes of the keys and values that parts keep for all sequences served."""
        spans = (part.attention.span(serving.context) * part.attention.cached for part in parts if part.attention)
        return round(serving.groups * serving.batch * sum(spans) * serving.cache_bits / 8)

    def working_bytes(self, batch: int, chunk: int) -> int:
        """Bytes of a layer's vectors for `batch` or `chunk` tokens, whichever are more, and of a batch's logits.

        Three vectors of the hidden size (input, residual, output) and two of the widest size are alive at once.
        """
        tokens = max(batch, chunk)
        return tokens * (3 * self.hidden + 2 * self.widest) * self.activation_bytes + batch * self.vocabulary * 4


def with_bytes(decoder: Decoder, sizes: Mapping[tuple[str, int | None], int]) -> Decoder:
    """The decoder with weight bytes by (kind, layer); raises InputError if `sizes` lacks a part other than vision."""
    missing = [part for part in decoder.parts if (part.kind, part.layer) not in sizes and part.kind != "vision"]
    if missing:
        where = "" if missing[0].layer is None else f" of layer {missing[0].layer}"
        raise InputError(f"the file has no weights for the {missing[0].kind}{where}; give the file of the whole model")
    parts = (
        replace(part, weight_bytes=sizes.get((part.kind, part.layer), part.weight_bytes)) for part in decoder.parts
    )
    return replace(decoder, parts=tuple(parts))


@record(frozen=True)
class Serving(Record):
    """The workload of a decoder.

    `context`: Tokens in the cache of each sequence. `prompt`, `generated`: Tokens of a request's prompt and answer, for
    ``prefill`` and ``request``. `chunk`: Tokens of a prompt that are processed together. `groups`: Batches in flight,
    each with its own cache; stages work in parallel only on different batches.
    """

    context: Annotated[int, Number(at_least=1, whole=True)] = 4096
    batch: Annotated[int, Number(at_least=1, whole=True)] = 1
    cache_bits: Annotated[float, Number(positive=True)] = 16.0
    prompt: Annotated[int, Number(at_least=1, whole=True)] = 512
    generated: Annotated[int, Number(at_least=1, whole=True)] = 128
    chunk: Annotated[int, Number(at_least=1, whole=True)] = 512
    objective: Annotated[str, OneOf(("token", "throughput", "prefill", "request"))] = "token"
    groups: Annotated[int, Number(at_least=1, whole=True)] = 1

    @property
    def decode(self) -> DecoderStep:
        """One step of decoding with a full cache."""
        return DecoderStep(1, self.context, self.batch, 1, self.cache_bits)

    @property
    def prefill(self) -> DecoderStep:
        """One step for the prompts of a batch."""
        return DecoderStep(self.prompt, self.prompt, self.batch, 1, self.cache_bits)

    @property
    def steps(self) -> tuple[tuple[float, DecoderStep], ...]:
        """(Repetitions, step) for each kind of step in the objective."""
        once: Iterable[tuple[float, DecoderStep]] = {
            "prefill": [(1.0, self.prefill)],
            "request": [(1.0, self.prefill), (float(self.generated), self.decode)],
        }.get(self.objective, [(1.0, self.decode)])
        return tuple(once)
