"""A decoder by its config.json: the shapes of its weights by the row of its family."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.planning.fit.decoder import CachedAttention, Decoder, DecoderPart


@dataclass(frozen=True, slots=True)
class Family:
    """Facts of a family that its config.json does not say.

    Attributes
    ----------
    norms
        Vectors of the hidden size in a layer; with `norm_bias` each has a second one.
    biases
        Projections with a bias, of ``q`` (with k and v), ``o`` and ``m`` (the MLP, and experts), ``h`` (the head).
    gated, qk_norm, tied
        Whether the MLP has three matrices and not two, queries and keys of a head are normalized, and embedding and
        head share weights if the file does not say.
    layer, embedding, final, head
        Paths of modules; ``{}`` is the number of a layer. Several are separated by ``+``.
    """

    norms: int
    norm_bias: bool
    biases: str
    gated: bool
    qk_norm: bool
    tied: bool
    layer: str
    embedding: str
    final: str
    head: str


_LLAMA = "model.layers.{} model.embed_tokens model.norm lm_head"
_GPT2 = "transformer.h.{} transformer.wte+transformer.wpe transformer.ln_f lm_head"
_NEOX = "gpt_neox.layers.{} gpt_neox.embed_in gpt_neox.final_layer_norm embed_out"
_PHI = "model.layers.{} model.embed_tokens model.final_layernorm lm_head"

# Norms, biases (- for none), and flags: g gated, n queries and keys are normalized, t tied, b norms have biases.
_ROWS = f"""
llama        2 -    g    {_LLAMA}
mistral      2 -    g    {_LLAMA}
mixtral      2 -    g    {_LLAMA}
qwen2        2 q    g    {_LLAMA}
qwen2_moe    2 q    g    {_LLAMA}
qwen3        2 -    gn   {_LLAMA}
qwen3_moe    2 -    gn   {_LLAMA}
gemma        2 -    gt   {_LLAMA}
gemma2       4 -    gt   {_LLAMA}
gemma3_text  4 -    gnt  {_LLAMA}
phi          1 qomh b    {_PHI}
phi3         2 -    g    {_LLAMA}
gpt2         2 qom  tb   {_GPT2}
gpt_neox     2 qom  b    {_NEOX}
deepseek_v2  2 -    g    {_LLAMA}
deepseek_v3  2 -    g    {_LLAMA}
gpt_oss      2 qom  g    {_LLAMA}
"""


def _families() -> Mapping[str, Family]:
    found = {}
    for row in _ROWS.strip().splitlines():
        name, norms, biases, flags, *modules = row.split()
        gated, qk_norm, tied, norm_bias = (letter in flags for letter in "gntb")
        found[name] = Family(int(norms), norm_bias, biases, gated, qk_norm, tied, *modules)
    return found


FAMILIES = _families()
"""``model_type`` of config.json → its row."""

_ALIASES = {
    "gemma3": "gemma3_text",
    "mistral3": "mistral",
    "ministral": "mistral",
    "gptneox": "gpt_neox",
    "phi2": "phi",
    "deepseek2": "deepseek_v3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "kimi_k2": "deepseek_v3",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "gpt-oss": "gpt_oss",
    "smollm3": "llama",
}
"""Other names of the same layers, among them those of architectures in GGUF files."""


def family_of(model_type: str) -> tuple[str, Family]:
    """The row of a ``model_type``, or of the architecture of a GGUF file."""
    name = _ALIASES.get(model_type, model_type)
    if name not in FAMILIES:
        raise InputError(
            f"model type {model_type!r} is not in the table of families; it has {', '.join(FAMILIES)}. If its layers "
            "are those of one of them, set model_type to that name in a copy of config.json"
        )
    return name, FAMILIES[name]


FIELDS: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd"),
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "inner": ("intermediate_size", "n_inner"),
    "vocabulary": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "chosen": ("num_experts_per_tok",),
    "expert_inner": ("moe_intermediate_size",),
    "shared": ("n_shared_experts",),
    "shared_inner": ("shared_expert_intermediate_size",),
    "dense_first": ("first_k_dense_replace",),
    "sparse_every": ("decoder_sparse_step",),
    "head_width": ("head_dim",),
    "groups": ("num_key_value_heads",),
    "window": ("sliding_window",),
    "window_pattern": ("sliding_window_pattern",),
    "full_below": ("max_window_layers",),
    "latent": ("kv_lora_rank",),
    "query_latent": ("q_lora_rank",),
    "nope": ("qk_nope_head_dim",),
    "rope": ("qk_rope_head_dim",),
    "value": ("v_head_dim",),
}
"""Name here → names in config.json, of which the first that is there counts."""

MAY_BE_ZERO = frozenset({"experts", "shared", "shared_inner", "expert_inner", "dense_first", "window", "full_below"})
"""Names of `FIELDS` whose number may be 0."""

_GEMMA3 = {"vocab_size": 262208, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
DEFAULTS: Mapping[str, Mapping[str, int]] = {"gemma3_text": {**_GEMMA3, "max_position_embeddings": 131072}}
"""``model_type`` → the numbers of transformers' class of configs, which published files leave out."""

_OF_BITS = {
    32: "float32 fp32",
    16: "float16 fp16 bfloat16 bf16",
    8: "fp8 int8",
    4: "int4",
    8.5: "q8_0",
    6.5625: "q6_k",
    5.5: "q5_k q5_0",
    4.5: "q4_k q4_0 nvfp4",
    3.4375: "q3_k",
    2.625: "q2_k",
    4.25: "mxfp4",
}
BITS: Mapping[str, float] = {name: bits for bits, names in _OF_BITS.items() for name in names.split()}
"""Type of weights or of the cache → bits of an element; blocks of GGUF's types with their scales (ggml-common.h)."""


def bits_of(text: str | float) -> float:
    """The bits of a type by its name, or a number of bits."""
    try:
        bits = BITS.get(str(text).lower()) or float(text)
    except (TypeError, ValueError):
        bits = 0.0
    if not 0 < bits <= 64:
        raise InputError(f"type {text!r} is not known; give bits per element, as 4.89, or one of {', '.join(BITS)}")
    return bits


def decoder_of_config(config: Mapping[str, Any], name: str, weights: str | float | None = None) -> Decoder:
    """The decoder that a config.json describes; InputError names a field that is missing or wrong.

    `weights` is the type or the bits of the matrices inside layers, if they are not stored as the file says; embedding,
    head, routers and norms keep the file's dtype.
    """
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    kind, family = family_of(str(text.get("model_type", "")))
    shapes = _Shapes({**DEFAULTS.get(kind, {}), **text}, kind, family, _bits(config, text, weights), name)
    shapes.check()
    parts = [*_vision(config, shapes), *shapes.parts()]
    context = shapes.get("context")
    return Decoder(
        name,
        tuple(parts),
        shapes.need("hidden"),
        max(shapes.inner, shapes.heads * shapes.head_width),
        shapes.need("vocabulary"),
        shapes.tied_bytes,
        context,
        "float32" if shapes.stored == 32 else "bfloat16",
        4 if shapes.stored == 32 else 2,
    )


def _bits(config: Mapping[str, Any], text: Mapping[str, Any], weights: str | float | None) -> tuple[float, float]:
    """Bits of an element that no quantization touches, and of one in the matrices of layers."""
    stored = bits_of(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16")
    if weights is not None:
        return stored, bits_of(weights)
    told = config.get("quantization_config") or config.get("quantization") or {}
    if not isinstance(told, Mapping):
        raise InputError(f"quantization_config is {told!r}; it must be an object with quant_method, or left out")
    method, bits = str(told.get("quant_method", "")), told.get("bits", _bits_by_method(told))
    if bits is None and method:
        bits = 4 if told.get("load_in_4bit") or method == "awq" else "mxfp4" if method == "mxfp4" else 8
    return stored, stored if bits is None else bits_of(bits)


def _bits_by_method(told: Mapping[str, Any]) -> Any:
    """The bits as quanto writes them, or compressed-tensors in its first group; None if they are not there."""
    groups = told.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    inside = first.get("weights") if isinstance(first, Mapping) else None
    return inside.get("num_bits") if isinstance(inside, Mapping) else told.get("weights")


def _number(name: str, field: str, value: Any, least: int) -> int:
    """The number that a field of a config is; refused if it is none, or too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        accepted = "a whole number, 0 or more" if least == 0 else "a positive whole number"
        raise InputError(f"config {name!r}: {field} is {value!r}; it must be {accepted}")
    return value


@dataclass(frozen=True, eq=False)
class _Shapes:
    """The fields of a config.json with its family's row, as sizes of weights."""

    text: Mapping[str, Any]
    kind: str
    family: Family
    bits: tuple[float, float]
    name: str

    def get(self, field: str) -> int | None:
        """The number of a field; None if the file has none."""
        names = (each for each in FIELDS[field] if self.text.get(each) is not None)
        found = next(names, None)
        least = 0 if field in MAY_BE_ZERO else 1
        return None if found is None else _number(self.name, found, self.text[found], least)

    def need(self, field: str) -> int:
        return _number(self.name, FIELDS[field][0], self.get(field), 1)

    def listed(self, field: str) -> list[Any]:
        """A list in the file; empty if it has none."""
        told = self.text.get(field) or []
        if not isinstance(told, list):
            raise InputError(f"config {self.name!r}: {field} is {told!r}; it must be a list")
        return told

    def check(self) -> None:
        """Refuse numbers that contradict each other."""
        hidden, heads, groups = self.need("hidden"), self.heads, self.get("groups") or self.heads
        experts, chosen, kinds = self.get("experts") or 0, self.get("chosen") or 0, self.listed("layer_types")
        wrong = ""
        if not self.get("latent") and heads % groups:
            wrong = f"{groups} num_key_value_heads do not divide {heads} num_attention_heads"
        elif not self.get("latent") and not self.get("head_width") and hidden % heads:
            wrong = f"{heads} num_attention_heads do not divide hidden_size {hidden}, and there is no head_dim"
        elif experts and chosen > experts:
            wrong = f"num_experts_per_tok is {chosen}, of {experts} experts"
        elif kinds and len(kinds) < self.need("layers"):
            wrong = f"layer_types has {len(kinds)} entries for {self.need('layers')} layers"
        if wrong:
            raise InputError(f"config {self.name!r}: {wrong}; correct the file")

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
        return self.get("head_width") or self.need("hidden") // self.heads

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

    def parts(self) -> Iterator[DecoderPart]:
        hidden, vocabulary, family = self.need("hidden"), self.need("vocabulary"), self.family
        table, places = vocabulary * hidden, self.need("context") * hidden if self.kind == "gpt2" else 0
        yield DecoderPart("embedding", None, tuple(family.embedding.split("+")), self.plain(table + places))
        for layer in range(self.need("layers")):
            yield self._attention(layer)
            yield from self._experts(layer) if self._is_sparse(layer) else [self._mlp(layer)]
        behind = self.norm(1) + self.bias("h", vocabulary)
        yield DecoderPart("head", None, (family.final, family.head), self.plain(table + behind), table)

    def _is_sparse(self, layer: int) -> bool:
        if not self.get("experts"):
            return False
        if layer in self.listed("mlp_only_layers"):
            return False
        return layer >= (self.get("dense_first") or 0) and (layer + 1) % (self.get("sparse_every") or 1) == 0

    def _attention(self, layer: int) -> DecoderPart:
        hidden, width = self.need("hidden"), self.head_width
        if self.get("latent"):
            factors, extra, attention = self._latent()
            kernels = 5
        else:
            groups = self.get("groups") or self.heads
            queried, grouped = self.heads * width, groups * width
            factors, kernels = hidden * (queried + 2 * grouped) + queried * hidden, 2
            bias_q = bool(self.text.get("attention_bias")) or "q" in self.family.biases
            bias_o = bool(self.text.get("attention_bias")) or "o" in self.family.biases
            extra = bias_q * (queried + 2 * grouped) + bias_o * hidden + 2 * width * self.family.qk_norm
            extra += self.heads if self.kind == "gpt_oss" else 0
            attention = CachedAttention(self.heads, (width, width), 2 * grouped, window=self._window(layer))
        size = round(factors * self.bits[1] / 8) if self.kind != "gpt_oss" else self.plain(factors)
        module = self.family.layer.format(layer)
        norms = self.norm(self.family.norms)
        return DecoderPart(
            "attention", layer, (module,), size + self.plain(extra + norms), factors, kernels, 0, 0, attention
        )

    def _latent(self) -> tuple[int, int, CachedAttention]:
        """Multi-head latent attention: what is cached are a latent vector and the rotated part of a key."""
        hidden, heads, latent = self.need("hidden"), self.heads, self.need("latent")
        nope, rope = self.need("nope"), self.need("rope")
        value, rank = self.need("value"), self.get("query_latent")
        queries = heads * (nope + rope)
        asked = hidden * queries if rank is None else hidden * rank + rank * queries
        factors = asked + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
        attention = CachedAttention(heads, (nope + rope, value), latent + rope, (latent + rope, latent))
        return factors, latent + (rank or 0), attention

    def _window(self, layer: int) -> int | None:
        window, kinds = self.get("window"), self.listed("layer_types")
        # Qwen's classes have windows only if they are told so, and from a layer on.
        qwen = self.kind.startswith("qwen")
        if not window or not self.text.get("use_sliding_window", not qwen):
            return None
        if kinds:
            return window if kinds[layer] == "sliding_attention" else None
        if qwen:
            below = self.get("full_below")
            return window if layer >= (28 if below is None else below) else None
        every = {"gemma2": 2, "gemma3_text": self.get("window_pattern") or 6, "gpt_oss": 2}.get(self.kind)
        return window if every is None or (layer + 1) % every else None

    def _mlp(self, layer: int) -> DecoderPart:
        hidden, inner = self.need("hidden"), self.inner
        matrices = 3 if self.family.gated else 2
        factors, extra = matrices * hidden * inner, self.bias("m", inner + hidden)
        size = round(factors * self.bits[1] / 8) + self.plain(extra)
        return DecoderPart("mlp", layer, (f"{self.family.layer.format(layer)}.mlp",), size, factors, 2)

    def _experts(self, layer: int) -> Iterator[DecoderPart]:
        """The router and shared experts, which every token passes, then the experts of which it passes some."""
        hidden, count, chosen = self.need("hidden"), self.need("experts"), self.need("chosen")
        inner = self.get("expert_inner") or self.inner
        shared = 3 * hidden * (self.get("shared_inner") or inner * (self.get("shared") or 0))
        gate = hidden if self.get("shared_inner") else 0
        router = hidden * count + gate + self.bias("m", count) + (count if self.kind == "deepseek_v3" else 0)
        module = f"{self.family.layer.format(layer)}.mlp"
        always = round(shared * self.bits[1] / 8) + self.plain(router)
        yield DecoderPart("mlp", layer, (f"{module}.gate",), always, shared + hidden * count + gate, 3 if shared else 1)
        factors = 3 * count * hidden * inner
        size = round(factors * self.bits[1] / 8) + self.plain(count * self.bias("m", 2 * inner + hidden))
        yield DecoderPart("experts", layer, (f"{module}.experts",), size, factors, 2, count, chosen)


def _vision(config: Mapping[str, Any], shapes: _Shapes) -> Iterator[DecoderPart]:
    """A vision tower as a plain transformer of its own: 4 h² + 2 h i elements in a layer, patches and positions.

    Where it merges patches, two matrices bring them to the width of the text. Qwen2-VL calls that width hidden_size.
    """
    told = config.get("vision_config")
    if isinstance(told, Mapping) and (told.get("embed_dim") or told.get("hidden_size")):

        def number(*fields: str, default: int = 0) -> int:
            found = next((each for each in fields if told.get(each)), None)
            return default if found is None else _number(shapes.name, f"vision_config.{found}", told[found], 1)

        hidden = number("embed_dim", "hidden_size")
        inner = number("intermediate_size", default=4 * hidden)
        layers, patch = number("num_hidden_layers", "depth"), number("patch_size", default=14)
        frames = number("temporal_patch_size", default=1)
        factors = layers * (4 * hidden * hidden + 2 * hidden * inner) + 3 * frames * patch * patch * hidden
        merged = hidden * number("spatial_merge_size") ** 2
        factors += merged * (merged + number("out_hidden_size", default=shapes.need("hidden")))
        # A step of decoding passes it by: the picture was read with the prompt.
        yield DecoderPart("vision", None, ("vision_tower",), shapes.plain(factors), 0, 0)
