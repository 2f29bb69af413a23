"""Decoders by their files, against the modules that transformers makes of the same config.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dlplacer.core.errors import InputError
from dlplacer.frontend.configs import FAMILIES, decoder_of_config, read_decoder
from dlplacer.planning.fit.decoder import Decoder, DecoderStep, Serving

transformers = pytest.importorskip("transformers")

TOKENS = 16
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
SPARSE = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
ROUTED = {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": GROUPED,
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 32},
    "gemma": {**GROUPED, "head_dim": 32},
    "gemma2": {**GROUPED, "head_dim": 32},
    "gemma3_text": {**GROUPED, "head_dim": 32, "num_hidden_layers": 6},
    "phi": SMALL,
    "phi3": GROUPED,
    "gpt_neox": SMALL,
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 256, "bos_token_id": 1},
    "mixtral": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**SPARSE, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**SPARSE, "head_dim": 16},
    "deepseek_v3": {
        **GROUPED,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        **LATENT,
        **ROUTED,
        "num_key_value_heads": 4,
    },
    "gpt_oss": {**GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
}
DENSE = [name for name in CONFIGS if "num_experts_per_tok" not in CONFIGS[name]]


def module_of(name: str) -> torch.nn.Module:
    fields = {"eos_token_id": 2, **CONFIGS[name]}
    config = transformers.AutoConfig.for_model(name, **fields)
    module: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return module.float().eval()


def decoder_of(name: str, module: torch.nn.Module) -> Decoder:
    told = json.loads(json.dumps(module.config.to_dict(), default=str))
    return decoder_of_config({**told, "dtype": "float32"}, name)


def prefill_flops(decoder: Decoder) -> float:
    step = DecoderStep(TOKENS, TOKENS, 1, head_tokens=TOKENS)
    return sum(kernel[0] for part in decoder.parts for kernel in decoder.work(part, step))


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_have_the_bytes_of_the_module(name: str) -> None:
    module = module_of(name)
    stored = sum(parameter.numel() for parameter in module.parameters()) * 4
    # The bias that corrects the choice of experts is trained by hand, hence a buffer.
    stored += sum(4 * buffer.numel() for path, buffer in module.named_buffers() if "correction_bias" in path)
    assert decoder_of(name, module).weight_bytes == stored


@pytest.mark.parametrize("name", DENSE)
def test_a_prefill_has_the_flops_of_the_module(name: str) -> None:
    module = module_of(name)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(1, TOKENS, dtype=torch.long), use_cache=False)
    assert prefill_flops(decoder_of(name, module)) == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize("name", ["llama", "deepseek_v3"])
def test_the_cache_has_the_elements_of_the_module_per_token(name: str) -> None:
    # Llama: keys and values of 2 heads of 16. MLA: the latent vector of 32 and the rotated part of 8.
    elements = {"llama": 2 * 2 * 16, "deepseek_v3": 32 + 8}[name]
    decoder = decoder_of(name, module_of(name))
    assert decoder.cache_bytes(decoder.parts, Serving(context=10, batch=2)) == 3 * 2 * 10 * elements * 2


def test_a_window_bounds_the_cache_of_its_layers() -> None:
    config = {**GROUPED, "model_type": "gemma2", "head_dim": 32, "sliding_window": 8, "num_hidden_layers": 4}
    decoder = decoder_of_config(config, "windows")
    # Two layers look back at 8 tokens, two at all 100; a token has 2 x 2 x 32 elements of 2 bytes.
    assert decoder.cache_bytes(decoder.parts, Serving(context=100)) == (2 * 8 + 2 * 100) * 2 * 2 * 32 * 2


def test_experts_are_read_as_often_as_they_are_chosen() -> None:
    decoder = decoder_of("mixtral", module_of("mixtral"))
    experts = next(part for part in decoder.parts if part.kind == "experts")
    for tokens, share in ((1, 1 / 2), (2, 3 / 4), (1000, 1.0)):
        moved = sum(kernel[1] for kernel in decoder.work(experts, DecoderStep(1, 1, tokens)))
        assert moved == pytest.approx(share * experts.weight_bytes)


def test_bits_change_the_matrices_of_layers_alone() -> None:
    config = {**GROUPED, "model_type": "llama", "dtype": "bfloat16", "tie_word_embeddings": False}
    whole, half = (decoder_of_config(config, "llama", bits) for bits in (None, "int8"))
    for one, other in zip(whole.parts, half.parts, strict=True):
        assert (one.weight_bytes == other.weight_bytes) == (one.layer is None)


def test_an_index_of_safetensors_says_how_many_bytes_there_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**GROUPED, "model_type": "llama", "dtype": "bfloat16"}))
    full = read_decoder(tmp_path).weight_bytes
    index = {"metadata": {"total_size": int(0.6 * full)}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_decoder(tmp_path).weight_bytes == pytest.approx(0.6 * full, abs=50)


@pytest.mark.parametrize(
    "told",
    [
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        {"quantization_config": {"quant_method": "quanto", "weights": "int4"}},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"num_bits": 4}}},
            }
        },
        {"quantization": {"group_size": 64, "bits": 4}},
    ],
)
def test_four_bits_are_read_as_each_method_writes_them(told: dict[str, Any]) -> None:
    config = {**GROUPED, "model_type": "llama", "dtype": "bfloat16"}
    read, asked = decoder_of_config({**config, **told}, "read"), decoder_of_config(config, "asked", "int4")
    assert read.weight_bytes == asked.weight_bytes


def test_a_vision_tower_has_the_bytes_of_the_module() -> None:
    vision = {"depth": 2, "embed_dim": 32, "mlp_ratio": 4, "num_heads": 2, "in_chans": 3, "hidden_size": 64}
    vision |= {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    from transformers.models.qwen2_vl.modeling_qwen2_vl import (
        Qwen2VisionTransformerPretrainedModel,
        Qwen2VLVisionConfig,
    )

    module = Qwen2VisionTransformerPretrainedModel._from_config(Qwen2VLVisionConfig(**vision))
    decoder = decoder_of_config({**GROUPED, "model_type": "qwen2_vl", "vision_config": vision}, "qwen2_vl")
    tower = next(part for part in decoder.parts if part.kind == "vision")
    # Norms and biases, which are not counted, weigh little.
    assert tower.weight_bytes == pytest.approx(2 * sum(each.numel() for each in module.parameters()), rel=0.03)


@pytest.mark.parametrize("below", [0, 1, 3])
def test_qwen_has_windows_where_the_class_has_them(below: int) -> None:
    fields = {**GROUPED, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": below}
    kinds = transformers.Qwen2Config(**fields).layer_types
    decoder = decoder_of_config({**fields, "model_type": "qwen2"}, "windows")
    windows = [part.attention.window for part in decoder.parts if part.attention is not None]
    assert windows == [8 if kind == "sliding_attention" else None for kind in kinds]


def test_numbers_that_gemma_leaves_out_are_those_of_its_class() -> None:
    left_out = ("vocab_size", "head_dim", "max_position_embeddings", "num_attention_heads", "num_key_value_heads")
    kept = {key: value for key, value in GROUPED.items() if key not in left_out}
    known = transformers.Gemma3TextConfig()
    full = {**kept, "model_type": "gemma3_text", **{name: getattr(known, name) for name in left_out}}
    short = {"model_type": "gemma3", "text_config": {**kept, "model_type": "gemma3_text"}}
    one, other = decoder_of_config(full, "gemma"), decoder_of_config(short, "gemma")
    assert (one.parts, one.vocabulary, one.most_context) == (other.parts, other.vocabulary, other.most_context)


@pytest.mark.parametrize("name", ["llama", "qwen2_moe"])
def test_a_gguf_header_gives_the_bytes_of_its_tensors(tmp_path: Path, name: str) -> None:
    gguf = pytest.importorskip("gguf")
    path, kind = tmp_path / "model.gguf", name.replace("_", "")
    writer = gguf.GGUFWriter(path, kind)
    keys = {"embedding_length": 64, "block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 2}
    keys |= {"feed_forward_length": 128, "context_length": 512}
    keys |= {"expert_count": 4, "expert_used_count": 2} if name == "qwen2_moe" else {}
    for key, value in keys.items():
        writer.add_uint32(f"{kind}.{key}", value)
    ffn = {"llama": ("ffn_up",), "qwen2_moe": ("ffn_up_exps", "ffn_gate_inp")}[name]
    sizes = {"token_embd": 4096, "output": 2048}
    sizes |= {f"blk.{layer}.{part}": 64 * (layer + 1) for layer in range(2) for part in ("attn_q", *ffn)}
    for tensor, rows in sizes.items():
        writer.add_tensor(f"{tensor}.weight", torch.zeros(rows, 64, dtype=torch.float16).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if name == "llama":
        decoder = read_decoder(path)
        assert decoder.weight_bytes == 2 * 64 * sum(sizes.values())
        assert decoder.layers == 2
        assert decoder.most_context == 512
    else:
        experts = [part for part in read_decoder(path).parts if part.kind == "experts"]
        assert [part.weight_bytes for part in experts] == [2 * 64 * 64, 2 * 64 * 128]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "bert"}, "bert"),
        ({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9}, "num_hidden_layers"),
        ({"model_type": "llama", **GROUPED, "quantization_config": "fp8"}, "quantization_config"),
        ({"model_type": "gemma2", **GROUPED, "sliding_window": 8, "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "llama", **GROUPED, "num_key_value_heads": 3}, "num_key_value_heads"),
        ({"model_type": "llama", **GROUPED, "num_hidden_layers": True}, "num_hidden_layers"),
        ({"model_type": "llama", **GROUPED, "vision_config": {"hidden_size": "a"}}, "vision_config.hidden_size"),
        ({"model_type": "mixtral", **GROUPED, "num_local_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"model_type": "deepseek_v3", **GROUPED, **LATENT, "qk_nope_head_dim": None}, "qk_nope_head_dim"),
    ],
)
def test_a_mistake_names_the_field(config: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as raised:
        decoder_of_config(config, "wrong")
    assert named in str(raised.value)


def test_every_family_of_the_table_is_compared() -> None:
    assert FAMILIES.keys() - CONFIGS.keys() == {"deepseek_v2"}
