"""Families of decoders, a row each: which vectors and biases their layers have, and how they name their modules."""

from collections.abc import Mapping
from dataclasses import dataclass

from dlplacer.core.errors import InputError


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
