"""A decoder by its config.json: the shapes of its weights by the row of its family."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.frontend.configs.families import FIELDS, Family, bits_of, family_of
from dlplacer.planning.fit.decoder import Attention, Decoder, Part


def decoder_of_config(config: Mapping[str, Any], name: str, weights: str | float | None = None) -> Decoder:
    """The decoder that a config.json describes.

    Parameters
    ----------
    weights
        Type or bits of the matrices inside layers, if they are not stored as the file says; embedding, head, routers
        and norms keep the file's dtype.

    Raises
    ------
    InputError
        If the family is not known, or a field is missing.
    """
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    shapes = _Shapes(text, *family_of(str(text.get("model_type", ""))), _bits(config, text, weights), name)
    parts = [*_vision(config, shapes), *shapes.parts()]
    context = shapes.get("context")
    return Decoder(
        name,
        tuple(parts),
        shapes.need("hidden"),
        max(shapes.inner, shapes.heads * shapes.head_width),
        shapes.need("vocabulary"),
        shapes.tied_bytes,
        int(context) if context else None,
        "float32" if shapes.stored == 32 else "bfloat16",
        4 if shapes.stored == 32 else 2,
    )


def _bits(config: Mapping[str, Any], text: Mapping[str, Any], weights: str | float | None) -> tuple[float, float]:
    """Bits of an element that no quantization touches, and of one in the matrices of layers."""
    stored = bits_of(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16")
    if weights is not None:
        return stored, bits_of(weights)
    told = config.get("quantization_config") or {}
    method, bits = str(told.get("quant_method", "")), told.get("bits")
    if bits is None and method:
        bits = 4 if told.get("load_in_4bit") or method == "awq" else "mxfp4" if method == "mxfp4" else 8
    return stored, stored if bits is None else bits_of(bits)


@dataclass(frozen=True, eq=False)
class _Shapes:
    """The fields of a config.json with its family's row, as sizes of weights."""

    text: Mapping[str, Any]
    kind: str
    family: Family
    bits: tuple[float, float]
    name: str

    def get(self, field: str) -> Any:
        return next((self.text[each] for each in FIELDS[field] if self.text.get(each) is not None), None)

    def need(self, field: str) -> int:
        value = self.get(field)
        if not isinstance(value, int) or value < 1:
            raise InputError(f"config {self.name!r}: {FIELDS[field][0]} is {value!r}; it must be a positive number")
        return value

    @property
    def stored(self) -> float:
        return self.bits[0]

    @property
    def heads(self) -> int:
        return self.need("heads")

    @cached_property
    def inner(self) -> int:
        return self.need("inner") if self.get("inner") else 4 * self.need("hidden")

    @cached_property
    def head_width(self) -> int:
        return int(self.text.get("head_dim") or self.need("hidden") // self.heads)

    @property
    def tied(self) -> bool:
        return bool(self.text.get("tie_word_embeddings", self.family.tied))

    @property
    def tied_bytes(self) -> int:
        return self.plain(self.need("vocabulary") * self.need("hidden")) if self.tied else 0

    def plain(self, elements: int) -> int:
        """Bytes of weights that stay as the file's dtype says."""
        return round(elements * self.stored / 8)

    def norm(self, count: int) -> int:
        return count * self.need("hidden") * (2 if self.family.norm_bias else 1)

    def bias(self, letter: str, size: int) -> int:
        return size if letter in self.family.biases else 0

    def parts(self) -> Iterator[Part]:
        hidden, vocabulary, family = self.need("hidden"), self.need("vocabulary"), self.family
        table, places = vocabulary * hidden, self.need("context") * hidden if self.kind == "gpt2" else 0
        yield Part("embedding", None, tuple(family.embedding.split("+")), self.plain(table + places))
        for layer in range(self.need("layers")):
            yield self._attention(layer)
            yield from self._experts(layer) if self._is_sparse(layer) else [self._mlp(layer)]
        behind = self.norm(1) + self.bias("h", vocabulary)
        yield Part("head", None, (family.final, family.head), self.plain(table + behind), table)

    def _is_sparse(self, layer: int) -> bool:
        if not self.get("experts"):
            return False
        if layer in (self.text.get("mlp_only_layers") or ()):
            return False
        return layer >= (self.get("dense_first") or 0) and (layer + 1) % (self.get("sparse_every") or 1) == 0

    def _attention(self, layer: int) -> Part:
        hidden, width = self.need("hidden"), self.head_width
        if self.text.get("kv_lora_rank"):
            factors, extra, attention = self._latent()
            kernels = 5
        else:
            groups = int(self.text.get("num_key_value_heads") or self.heads)
            queried, grouped = self.heads * width, groups * width
            factors, kernels = hidden * (queried + 2 * grouped) + queried * hidden, 2
            bias_q = bool(self.text.get("attention_bias")) or "q" in self.family.biases
            bias_o = bool(self.text.get("attention_bias")) or "o" in self.family.biases
            extra = bias_q * (queried + 2 * grouped) + bias_o * hidden + 2 * width * self.family.qk_norm
            extra += self.heads if self.kind == "gpt_oss" else 0
            attention = Attention(self.heads, (width, width), 2 * grouped, window=self._window(layer))
        size = round(factors * self.bits[1] / 8) if self.kind != "gpt_oss" else self.plain(factors)
        module = self.family.layer.format(layer)
        norms = self.norm(self.family.norms)
        return Part("attention", layer, (module,), size + self.plain(extra + norms), factors, kernels, 0, 0, attention)

    def _latent(self) -> tuple[int, int, Attention]:
        """Multi-head latent attention: what is cached are a latent vector and the rotated part of a key."""
        hidden, heads, latent = self.need("hidden"), self.heads, int(self.text["kv_lora_rank"])
        nope, rope = int(self.text["qk_nope_head_dim"]), int(self.text["qk_rope_head_dim"])
        value, rank = int(self.text["v_head_dim"]), self.text.get("q_lora_rank")
        queries = heads * (nope + rope)
        asked = hidden * queries if rank is None else hidden * rank + rank * queries
        factors = asked + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
        attention = Attention(heads, (nope + rope, value), latent + rope, (latent + rope, latent))
        return factors, latent + (rank or 0), attention

    def _window(self, layer: int) -> int | None:
        window, kinds = self.text.get("sliding_window"), self.text.get("layer_types")
        if not window or self.text.get("use_sliding_window") is False:
            return None
        if kinds:
            return int(window) if kinds[layer] == "sliding_attention" else None
        every = {"gemma2": 2, "gemma3_text": int(self.text.get("sliding_window_pattern") or 6), "gpt_oss": 2}.get(
            self.kind
        )
        return int(window) if every is None or (layer + 1) % every else None

    def _mlp(self, layer: int) -> Part:
        hidden, inner = self.need("hidden"), self.inner
        matrices = 3 if self.family.gated else 2
        factors, extra = matrices * hidden * inner, self.bias("m", inner + hidden)
        size = round(factors * self.bits[1] / 8) + self.plain(extra)
        return Part("mlp", layer, (f"{self.family.layer.format(layer)}.mlp",), size, factors, 2)

    def _experts(self, layer: int) -> Iterator[Part]:
        """What every token passes, the router and shared experts, then the experts of which it passes some."""
        hidden, count, chosen = self.need("hidden"), self.need("experts"), self.need("chosen")
        inner = int(self.get("expert_inner") or self.inner)
        shared = 3 * hidden * int(self.get("shared_inner") or inner * (self.get("shared") or 0))
        gate = hidden if self.get("shared_inner") else 0
        router = hidden * count + gate + self.bias("m", count) + (count if self.kind == "deepseek_v3" else 0)
        module = f"{self.family.layer.format(layer)}.mlp"
        always = round(shared * self.bits[1] / 8) + self.plain(router)
        yield Part("mlp", layer, (f"{module}.gate",), always, shared + hidden * count + gate, 3 if shared else 1)
        factors = 3 * count * hidden * inner
        size = round(factors * self.bits[1] / 8) + self.plain(count * self.bias("m", 2 * inner + hidden))
        yield Part("experts", layer, (f"{module}.experts",), size, factors, 2, count, chosen)


def _vision(config: Mapping[str, Any], shapes: _Shapes) -> Iterator[Part]:
    """A vision tower as a plain transformer of its own: 4 h² + 2 h i elements in a layer, patches and positions."""
    told = config.get("vision_config")
    if isinstance(told, Mapping) and told.get("hidden_size"):
        hidden, inner = int(told["hidden_size"]), int(told.get("intermediate_size") or 4 * told["hidden_size"])
        layers = int(told.get("num_hidden_layers") or told.get("depth") or 0)
        patch = int(told.get("patch_size") or 14)
        factors = layers * (4 * hidden * hidden + 2 * hidden * inner) + 3 * patch * patch * hidden
        # A step of decoding passes it by: the picture was read with the prompt.
        yield Part("vision", None, ("vision_tower",), shapes.plain(factors), 0, 0)
