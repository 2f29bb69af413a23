"""The decoder in a file: config.json, a GGUF header, or an index of safetensors beside its config.json."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.files.text import read_json
from dlplacer.frontend.configs.hugging_face import decoder_of_config, family_of
from dlplacer.planning.fit.decoder import Decoder, with_bytes

INDEX = "model.safetensors.index.json"


def read_decoder(path: str | PathLike[str], weights: str | float | None = None) -> Decoder:
    """The decoder in a file, or in a folder that has one.

    `weights` is the type or the bits of the matrices in layers, in place of what the file says; a GGUF file says it for
    each tensor.
    """
    found = Path(path)
    if found.is_dir():
        found = next(
            (found / name for name in ("config.json", INDEX) if (found / name).is_file()), found / "config.json"
        )
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
    """The decoder with bytes that add up to those of an index of safetensors: experts and matrices are scaled."""
    told = read_json(index)
    metadata = told.get("metadata") if isinstance(told, Mapping) else None
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if not isinstance(total, int):
        raise InputError(f"{index.name} has no metadata.total_size; save the model again, or remove the file")
    outside = sum(part.weight_bytes for part in decoder.parts if part.layer is None) - decoder.tied_bytes
    inside = sum(part.weight_bytes for part in decoder.parts if part.layer is not None)
    factor = (total - outside) / inside
    if not 0.1 < factor < 4:
        raise InputError(
            f"{index.name} has {total} bytes and config.json {decoder.weight_bytes}; they are of two models"
        )
    parts = (
        part if part.layer is None else replace(part, weight_bytes=round(part.weight_bytes * factor))
        for part in decoder.parts
    )
    return replace(decoder, parts=tuple(parts))


_GGUF_FIELDS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "context_length",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "sliding_window": "attention.sliding_window",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "v_head_dim": "attention.value_length_mla",
}
"""Name in config.json → key in a GGUF header behind its architecture."""


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
        # Files from before the keys of MLA have those of whole heads.
        config.setdefault("v_head_dim", value(f"{kind}.attention.value_length"))
        config["qk_nope_head_dim"] = config["v_head_dim"]
    if tied:
        sizes["head", None] += sizes["embedding", None]
    sized = with_bytes(decoder_of_config(config, str(value("general.name") or path.stem)), sizes)
    return replace(sized, tied_bytes=sizes["embedding", None] if tied else 0)


def _gguf_part(name: str) -> tuple[str, int | None]:
    """The kind of part and the layer that a tensor of a GGUF file belongs to."""
    block, _, rest = name.removeprefix("blk.").partition(".")
    if not name.startswith("blk."):
        return ("embedding" if name.startswith(("token_embd", "position_embd")) else "head"), None
    if "exps" in rest:
        return "experts", int(block)
    norms = rest.startswith(("ffn_norm", "post_ffw_norm", "post_attention_norm"))
    return ("mlp" if rest.startswith("ffn") and not norms else "attention"), int(block)
