"""Read a decoder from a config.json, GGUF header or safetensors index; a table of model families adds missing facts."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from dlplacer.core.errors import InputError
from dlplacer.files.text import read_json
from dlplacer.planning.fit.decoder import CachedAttention, Decoder, DecoderPart, with_bytes


class Family(NamedTuple):
    """Facts about a model family that are absent from its config.json.

    `norms`: norms per layer, as a digit. `biases`: the projections with a bias: ``q`` (with k and v), ``o``, ``m`` (the
    MLP, and experts), ``h`` (the head); ``-`` for none. `flags`: ``b``: norms have a bias beside the weight; ``g``: the
    MLP has three matrices, not two; ``n``: queries and keys of a head are normalized; ``t``: embedding and head share
    weights unless the file says otherwise. The other fields are module paths, separated by ``+`` if several; ``{}``
    stands for the layer number.
    """

    norms: str
    biases: str
    flags: str
    layer: str = "model.layers.{}"
    embedding: str = "model.embed_tokens"
    final: str = "model.norm"
    head: str = "lm_head"


_ROWS = """
llama mistral mixtral phi3 deepseek_v2 deepseek_v3 | 2 - g
qwen2 qwen2_moe | 2 q g
qwen3 qwen3_moe | 2 - gn
gemma | 2 - gt
gemma2 | 4 - gt
gemma3_text | 4 - gnt
phi | 1 qomh b model.layers.{} model.embed_tokens model.final_layernorm
gpt2 | 2 qom tb transformer.h.{} transformer.wte+transformer.wpe transformer.ln_f
gpt_neox | 2 qom b gpt_neox.layers.{} gpt_neox.embed_in gpt_neox.final_layer_norm embed_out
gpt_oss | 2 qom g
"""
FAMILIES = {
    name: Family(*told.split())
    for names, told in (row.split(" | ") for row in _ROWS.strip().splitlines())
    for name in names.split()
}
"""``model_type`` of config.json → its family."""

_ALIASED = """
gemma3=gemma3_text mistral3=mistral ministral=mistral gptneox=gpt_neox phi2=phi deepseek2=deepseek_v3
qwen2moe=qwen2_moe qwen3moe=qwen3_moe kimi_k2=deepseek_v3 qwen2_vl=qwen2 qwen2_5_vl=qwen2 gpt-oss=gpt_oss smollm3=llama
"""
_ALIASES = dict(pair.split("=") for pair in _ALIASED.split())
"""Other ``model_type``, or architecture of a GGUF file → the family with the same layers."""


def family_of(model_type: str) -> tuple[str, Family]:
    """The family's name and row for a ``model_type`` or the architecture of a GGUF file."""
    name = _ALIASES.get(model_type, model_type)
    if name not in FAMILIES:
        raise InputError(
            f"model type {model_type!r} is not in the table of families; it has {', '.join(FAMILIES)}. If its layers "
            "are those of one of them, set model_type to that name in a copy of config.json"
        )
    return name, FAMILIES[name]


_GEMMA3 = {"vocab_size": 262208, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4}
DEFAULTS = {"gemma3_text": {**_GEMMA3, "max_position_embeddings": 131072}}
"""``model_type`` → defaults of transformers' config class, which published files omit."""

_TYPES = """
float32=32 fp32=32 float16=16 fp16=16 bfloat16=16 bf16=16 fp8=8 int8=8 int4=4 q8_0=8.5 q6_k=6.5625 q5_k=5.5 q5_0=5.5
q4_k=4.5 q4_0=4.5 nvfp4=4.5 q3_k=3.4375 q2_k=2.625 mxfp4=4.25
"""
BITS = {name: float(bits) for name, bits in (pair.split("=") for pair in _TYPES.split())}
"""Type of weights or cache → bits per element; those of GGUF types include the scales of blocks (ggml-common.h)."""


def bits_of(text: str | float) -> float:
    """Bits per element of a type, given by name or as a number of bits."""
    try:
        bits = BITS.get(str(text).lower()) or float(text)
    except (TypeError, ValueError):
        bits = 0.0
    if not 0 < bits <= 64:
        raise InputError(f"type {text!r} is not known; give bits per element (4.89) or one of {', '.join(BITS)}")
    return bits


_MAY_BE_ZERO = (
    *("num_local_experts", "n_shared_experts", "shared_expert_intermediate_size", "moe_intermediate_size"),
    *("first_k_dense_replace", "sliding_window", "max_window_layers"),
)
_RENAMED = """
n_embd=hidden_size n_layer=num_hidden_layers n_head=num_attention_heads n_inner=intermediate_size
n_positions=max_position_embeddings num_experts=num_local_experts n_routed_experts=num_local_experts
"""
_OTHER_NAMES = dict(pair.split("=") for pair in _RENAMED.split())
"""Name in some files → the usual name, which takes precedence if both are present."""


def decoder_of_config(config: Mapping[str, Any], name: str, weights: str | float | None = None) -> Decoder:
    """The decoder that a config.json describes; InputError names a field that is missing or wrong.

    `weights` overrides the type or bits of the matrices inside layers; embedding, head, routers and norms keep the
    file's dtype.
    """
    text = {**config, **_object(config.get("text_config"))}
    kind, family = family_of(str(text.get("model_type", "")))
    for other, usual in _OTHER_NAMES.items():
        if text.get(usual) is None:
            text[usual] = text.get(other)
    stored, bits = _bits(config, text, weights)
    told = {field: value for field, value in text.items() if value is not None}
    shapes = _Shapes({**DEFAULTS.get(kind, {}), **told}, kind, family, stored, bits, name)
    vocabulary = shapes.need("vocab_size")
    return Decoder(
        name,
        (*_vision(config, shapes), *shapes.parts()),
        shapes.hidden,
        max(shapes.inner, shapes.heads * shapes.head_width),
        vocabulary,
        shapes.plain(vocabulary * shapes.hidden) if text.get("tie_word_embeddings", "t" in family.flags) else 0,
        shapes.get("max_position_embeddings"),
        "float32" if stored == 32 else "bfloat16",
        4 if stored == 32 else 2,
    )


def _bits(config: Mapping[str, Any], text: Mapping[str, Any], weights: str | float | None) -> tuple[float, float]:
    """Bits per unquantized element, and per element of the layers' matrices."""
    stored = bits_of(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16")
    if weights is not None:
        return stored, bits_of(weights)
    told = config.get("quantization_config") or config.get("quantization") or {}
    if not isinstance(told, Mapping):
        raise InputError(f"quantization_config is {told!r}; it must be an object with quant_method, or left out")
    method, inside = str(told.get("quant_method", "")), told.get("weights")
    # Formats of quanto, and of compressed-tensors, whose first group counts.
    for group in list(_object(told.get("config_groups")).values())[:1]:
        inside = _object(_object(group).get("weights")).get("num_bits")
    bits = told.get("bits", inside)
    if bits is None and method:
        bits = 4 if told.get("load_in_4bit") or method == "awq" else "mxfp4" if method == "mxfp4" else 8
    return stored, stored if bits is None else bits_of(bits)


def _object(value: Any) -> Mapping[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _number(name: str, field: str, value: Any, least: int) -> int:
    """The value of a config field; refused unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        accepted = "a whole number, 0 or more" if least == 0 else "a positive whole number"
        raise InputError(f"config {name!r}: {field} is {value!r}; it must be {accepted}")
    return value


class _Shapes:
    """Weight sizes from the fields of a config.json and its family's row; contradictory numbers are refused.

    `stored`: bits per element that keeps the file's dtype; `bits`: bits per element of the layers' matrices.
    """

    def __init__(
        self, text: Mapping[str, Any], kind: str, family: Family, stored: float, bits: float, name: str
    ) -> None:
        self.text, self.kind, self.family, self.stored, self.bits, self.name = text, kind, family, stored, bits, name
        self.hidden, self.heads, self.layers = map(
            self.need, ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        self.groups = self.get("num_key_value_heads", self.heads)
        self.inner: int = self.get("intermediate_size", 4 * self.hidden)
        self.head_width: int = self.get("head_dim", self.hidden // self.heads)
        experts, chosen = self.get("num_local_experts", 0), self.get("num_experts_per_tok", 0)
        kinds, latent = self.listed("layer_types"), self.get("kv_lora_rank")
        wrong = ""
        if not latent and self.heads % self.groups:
            wrong = f"{self.groups} num_key_value_heads do not divide {self.heads} num_attention_heads"
        elif not latent and "head_dim" not in self.text and self.hidden % self.heads:
            wrong = f"{self.heads} num_attention_heads do not divide hidden_size {self.hidden}, without a head_dim"
        elif experts and chosen > experts:
            wrong = f"num_experts_per_tok is {chosen}, of {experts} experts"
        elif kinds and len(kinds) < self.layers:
            wrong = f"layer_types has {len(kinds)} entries for {self.layers} layers"
        if wrong:
            raise InputError(f"config {self.name!r}: {wrong}; correct the file")

    def get(self, field: str, default: Any = None) -> Any:
        """The field's number, or the default."""
        return self.need(field) if field in self.text else default

    def need(self, field: str) -> int:
        return _number(self.name, field, self.text.get(field), 0 if field in _MAY_BE_ZERO else 1)

    def listed(self, field: str) -> list[Any]:
        """The field's list; empty if absent."""
        told = self.text.get(field) or []
        if not isinstance(told, list):
            raise InputError(f"config {self.name!r}: {field} is {told!r}; it must be a list")
        return told

    def plain(self, elements: int) -> int:
        """Bytes of weights that keep the file's dtype."""
        return round(elements * self.stored / 8)

    def packed(self, elements: int) -> int:
        """Bytes of the matrices of a layer."""
        return round(elements * self.bits / 8)

    def norm(self, count: int) -> int:
        return count * self.hidden * (2 if "b" in self.family.flags else 1)

    def bias(self, letter: str, size: int) -> int:
        return size if letter in self.family.biases else 0

    def parts(self) -> Iterator[DecoderPart]:
        hidden, vocabulary, family = self.hidden, self.need("vocab_size"), self.family
        table, places = vocabulary * hidden, self.need("max_position_embeddings") * hidden if self.kind == "gpt2" else 0
        yield DecoderPart("embedding", None, tuple(family.embedding.split("+")), self.plain(table + places))
        sparse = range(self.get("first_k_dense_replace", 0), self.layers) if self.get("num_local_experts") else ()
        for layer in range(self.layers):
            yield self._attention(layer)
            is_sparse = layer in sparse and layer not in self.listed("mlp_only_layers")
            if is_sparse and (layer + 1) % self.get("decoder_sparse_step", 1) == 0:
                yield from self._experts(layer)
            else:
                factors = (3 if "g" in family.flags else 2) * hidden * self.inner
                size = self.packed(factors) + self.plain(self.bias("m", self.inner + hidden))
                yield DecoderPart("mlp", layer, (f"{family.layer.format(layer)}.mlp",), size, factors, 2)
        behind = self.norm(1) + self.bias("h", vocabulary)
        yield DecoderPart("head", None, (family.final, family.head), self.plain(table + behind), table)

    def _attention(self, layer: int) -> DecoderPart:
        hidden, heads, width, kernels = self.hidden, self.heads, self.head_width, 2
        if "kv_lora_rank" in self.text:
            factors, extra, attention = self._latent()
            kernels = 5
        else:
            queried, grouped = heads * width, self.groups * width
            factors = hidden * (queried + 2 * grouped) + queried * hidden
            biased = "qo" if self.text.get("attention_bias") else self.family.biases
            extra = ("q" in biased) * (queried + 2 * grouped) + ("o" in biased) * hidden
            extra += 2 * width * ("n" in self.family.flags) + heads * (self.kind == "gpt_oss")
            attention = CachedAttention(heads, (width, width), 2 * grouped, window=self._window(layer))
        size = self.plain(factors) if self.kind == "gpt_oss" else self.packed(factors)
        size += self.plain(extra + self.norm(int(self.family.norms)))
        module = self.family.layer.format(layer)
        return DecoderPart("attention", layer, (module,), size, factors, kernels, attention=attention)

    def _latent(self) -> tuple[int, int, CachedAttention]:
        """Multi-head latent attention: the cache holds a latent vector and the rotated part of a key."""
        hidden, heads, latent, rank = self.hidden, self.heads, self.need("kv_lora_rank"), self.get("q_lora_rank")
        nope, rope, value = map(self.need, ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        queries = heads * (nope + rope)
        asked = hidden * queries if rank is None else hidden * rank + rank * queries
        factors = asked + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
        attention = CachedAttention(heads, (nope + rope, value), latent + rope, (latent + rope, latent))
        return factors, latent + (rank or 0), attention

    def _window(self, layer: int) -> int | None:
        window, kinds = self.get("sliding_window"), self.listed("layer_types")
        # Qwen's classes use windows only if the config says so, and only from a certain layer on.
        qwen = self.kind.startswith("qwen")
        if not window or not self.text.get("use_sliding_window", not qwen):
            return None
        if kinds:
            return window if kinds[layer] == "sliding_attention" else None
        if qwen:
            return window if layer >= self.get("max_window_layers", 28) else None
        every = {"gemma2": 2, "gemma3_text": self.get("sliding_window_pattern", 6), "gpt_oss": 2}.get(self.kind)
        return window if every is None or (layer + 1) % every else None

    def _experts(self, layer: int) -> Iterator[DecoderPart]:
        """The router and shared experts, used by every token, then the experts, of which a token uses a few."""
        hidden, count, chosen = self.hidden, self.need("num_local_experts"), self.need("num_experts_per_tok")
        inner = self.get("moe_intermediate_size") or self.inner
        shared_inner = self.get("shared_expert_intermediate_size")
        shared = 3 * hidden * (shared_inner or inner * self.get("n_shared_experts", 0))
        gate = hidden if shared_inner else 0
        router = hidden * count + gate + self.bias("m", count) + (count if self.kind == "deepseek_v3" else 0)
        module, kernels = f"{self.family.layer.format(layer)}.mlp", 3 if shared else 1
        always = self.packed(shared) + self.plain(router)
        yield DecoderPart("mlp", layer, (f"{module}.gate",), always, shared + hidden * count + gate, kernels)
        factors = 3 * count * hidden * inner
        size = self.packed(factors) + self.plain(count * self.bias("m", 2 * inner + hidden))
        yield DecoderPart("experts", layer, (f"{module}.experts",), size, factors, 2, count, chosen)


def _vision(config: Mapping[str, Any], shapes: _Shapes) -> Iterator[DecoderPart]:
    """A plain transformer as vision tower: a patch embedding, and layers of 4 h² + 2 h i elements (widths h, inner i).

    If the tower merges patches, two matrices project them to the width of the text, which Qwen2-VL calls hidden_size.
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
        factors += merged * (merged + number("out_hidden_size", default=shapes.hidden))
        # A decoding step skips the vision tower: the image was read with the prompt.
        yield DecoderPart("vision", None, ("vision_tower",), shapes.plain(factors), 0, 0)


INDEX = "model.safetensors.index.json"


def read_decoder(path: str | PathLike[str], weights: str | float | None = None) -> Decoder:
    """The decoder described by a file, or by the config.json in a folder.

    `weights` overrides the type or bits of the layers' matrices; a GGUF file gives a type for each tensor and takes no
    override.
    """
    found = Path(path)
    if found.is_dir():
        found /= INDEX if (found / INDEX).is_file() and not (found / "config.json").is_file() else "config.json"
    if not found.is_file():
        raise InputError(f"there is no file {str(path)!r}; give a config.json, a .gguf file, or the folder of a model")
    if found.suffix == ".gguf":
        if weights is not None:
            raise InputError(f"weights is {weights!r}, but {found.name} says the type of each tensor; leave it out")
        return _of_gguf(found)
    config = read_json(found if found.suffix != ".json" or "index" not in found.name else found.parent / "config.json")
    if not isinstance(config, Mapping) or not ({"model_type", "text_config"} & config.keys()):
        raise InputError(f"{str(path)!r} has no model_type; give the config.json of a language model")
    name = str(config.get("_name_or_path") or found.resolve().parent.name or found.stem)
    decoder = decoder_of_config(config, name, weights)
    index = found.parent / INDEX
    return _of_index(decoder, index) if index.is_file() and weights is None else decoder


def _of_index(decoder: Decoder, index: Path) -> Decoder:
    """The decoder with the parts of layers scaled so that all bytes add up to the total of a safetensors index."""
    total = _object(_object(read_json(index)).get("metadata")).get("total_size")
    if not isinstance(total, int):
        raise InputError(f"{index.name} has no metadata.total_size; save the model again, or remove the file")
    outside = sum(part.weight_bytes for part in decoder.parts if part.layer is None) - decoder.tied_bytes
    inside = sum(part.weight_bytes for part in decoder.parts if part.layer is not None)
    factor = (total - outside) / inside
    if not 0.1 < factor < 4:
        raise InputError(
            f"{index.name} has {total} bytes and config.json {decoder.weight_bytes}; they belong to different models"
        )
    scaled = (replace(part, weight_bytes=round(part.weight_bytes * factor)) for part in decoder.parts)
    parts = (part if part.layer is None else new for part, new in zip(decoder.parts, scaled, strict=True))
    return replace(decoder, parts=tuple(parts))


_GGUF_KEYS = """
hidden_size=embedding_length num_hidden_layers=block_count num_attention_heads=attention.head_count
num_key_value_heads=attention.head_count_kv head_dim=attention.key_length intermediate_size=feed_forward_length
vocab_size=vocab_size max_position_embeddings=context_length num_local_experts=expert_count
num_experts_per_tok=expert_used_count moe_intermediate_size=expert_feed_forward_length
n_shared_experts=expert_shared_count first_k_dense_replace=leading_dense_block_count
sliding_window=attention.sliding_window q_lora_rank=attention.q_lora_rank kv_lora_rank=attention.kv_lora_rank
qk_rope_head_dim=rope.dimension_count v_head_dim=attention.value_length_mla
"""
_GGUF_FIELDS = dict(pair.split("=") for pair in _GGUF_KEYS.split())
"""Name in config.json → key in a GGUF header, without its architecture prefix."""


def _of_gguf(path: Path) -> Decoder:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise InputError("a GGUF file needs the package gguf; install it with: pip install 'dlplacer[gguf]'") from None
    reader = GGUFReader(path)

    def value(key: str) -> Any:
        field = reader.get_field(key)
        return None if field is None else field.contents()

    kind = str(value("general.architecture"))
    config: dict[str, Any] = {"model_type": family_of(kind)[0], "torch_dtype": "float16"}
    for name, key in _GGUF_FIELDS.items():
        told = value(f"{kind}.{key}")
        if told is not None:
            config[name] = max(told) if isinstance(told, list) else told
    sizes: Counter[tuple[str, int | None]] = Counter()
    for tensor in reader.tensors:
        sizes[_gguf_part(tensor.name)] += int(tensor.n_bytes)
        if tensor.name == "token_embd.weight":
            config.setdefault("vocab_size", math.prod(map(int, tensor.shape)) // config["hidden_size"])
    tied = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    config["tie_word_embeddings"] = tied
    if "kv_lora_rank" in config:
        # Files older than the MLA keys have the lengths of whole heads.
        config.setdefault("v_head_dim", value(f"{kind}.attention.value_length"))
        config["qk_nope_head_dim"] = config["v_head_dim"]
    if tied:
        sizes["head", None] += sizes["embedding", None]
    sized = with_bytes(decoder_of_config(config, str(value("general.name") or path.stem)), sizes)
    return replace(sized, tied_bytes=sizes["embedding", None] if tied else 0)


def _gguf_part(name: str) -> tuple[str, int | None]:
    """The kind of part and the layer of a tensor in a GGUF file."""
    block, _, rest = name.removeprefix("blk.").partition(".")
    if not name.startswith("blk."):
        return ("embedding" if name.startswith(("token_embd", "position_embd")) else "head"), None
    if "exps" in rest:
        return "experts", int(block)
    norms = rest.startswith(("ffn_norm", "post_ffw_norm", "post_attention_norm"))
    return ("mlp" if rest.startswith("ffn") and not norms else "attention"), int(block)
