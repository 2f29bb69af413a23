"""Tiny models of Hugging Face, trained on two devices under a random plan, beside plain PyTorch.

python tests/benchmarks/hugging_face.py [FAMILY]...   prints a line per model, then how many are equal, refused, wrong

Needs no network: models are built from their configurations. Each model runs in a process of its own.
"""

import copy
import multiprocessing
import os
import random
import sys
import warnings
from dataclasses import replace
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

import dlplacer as dp

TOLERANCE = 1e-4
_SIZES = {
    "vocab_size": 64, "hidden_size": 32, "n_embd": 32, "d_model": 32, "intermediate_size": 48, "n_inner": 48,
    "ffn_dim": 48, "d_ff": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_hidden_layers": 1, "n_layer": 1,
    "num_layers": 1, "encoder_layers": 1, "decoder_layers": 1, "num_attention_heads": 4, "n_head": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "n_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "image_size": 32, "patch_size": 16, "num_labels": 4, "use_cache": False,
}  # fmt: skip
_EXPERTS = {"num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_WIDTHS = {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8, "embed_dim": 8, "num_stages": 2}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(
        ("arcee", "bloom", "cohere", "gemma", "gemma2", "glm", "gpt2", "gpt_bigcode", "gpt_neox",
         "granite", "helium", "llama", "mistral", "nemotron", "olmo", "olmo2", "opt", "persimmon", "phi",
         "phi3", "qwen2", "qwen3", "smollm3", "stablelm", "starcoder2", "xglm", "biogpt", "mamba"),
        ("AutoModelForCausalLM", {}),
    ),
    **dict.fromkeys(("mixtral", "olmoe", "qwen2_moe", "granitemoe"), ("AutoModelForCausalLM", _EXPERTS)),
    **dict.fromkeys(
        ("albert", "bert", "camembert", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "esm", "fnet",
         "modernbert", "mpnet", "nystromformer", "roberta", "roformer", "yoso"),
        ("AutoModelForMaskedLM", {}),
    ),
    **dict.fromkeys(("bart", "blenderbot", "m2m_100", "mbart", "pegasus", "t5", "umt5"),
                    ("AutoModelForSeq2SeqLM", {})),
    **dict.fromkeys(("beit", "dinov2", "ijepa", "vit", "vit_msn"), ("AutoModelForImageClassification", {})),
    **dict.fromkeys(("convnext", "convnextv2", "mobilenet_v2", "resnet", "regnet"),
                    ("AutoModelForImageClassification", _WIDTHS)),
}  # fmt: skip
"""Family → class of the model, and what its configuration has besides the sizes."""


def module_of(family: str) -> torch.nn.Module:
    """A tiny model of the family that drops nothing, with fixed weights."""
    import transformers

    auto, more = MODELS[family]
    config = transformers.AutoConfig.for_model(family)
    for name, value in {**_SIZES, **more}.items():
        if hasattr(config, name):
            setattr(config, name, value)
    for name, value in vars(config).items():
        if ("drop" in name or "pdrop" in name) and isinstance(value, float):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    config.decoder_start_token_id = 0
    module: torch.nn.Module = getattr(transformers, auto).from_config(config)
    for child in module.modules():
        if isinstance(child, torch.nn.Dropout):
            child.p = 0.0
    return module.train()


def job_of(family: str) -> dp.Job:
    """A training step of the family's model."""
    draw = torch.Generator().manual_seed(1)
    if MODELS[family][0] == "AutoModelForImageClassification":
        images = torch.randn(2, 3, 32, 32, generator=draw)
        given: dict[str, Any] = {"pixel_values": images, "labels": torch.tensor([1, 3])}
    else:
        tokens = torch.randint(3, 64, (2, 12), generator=draw)
        given = {"input_ids": tokens, "labels": tokens}
    return dp.Job(module_of(family), kwargs=given)


def random_plan(graph: dp.OpGraph, seed: int) -> Any:
    """A plan that spreads the ops over two devices."""
    draw = random.Random(seed)
    still = ("parameter", "buffer", "input", "constant")
    ops = tuple(replace(op, time_s=0.0 if op.kind in still else draw.uniform(1e-4, 1e-3)) for op in graph.ops)
    devices = (dp.Device("d0", "cpu-core"), dp.Device("d1", "cpu-core"))
    box = dp.Topology(devices, (), (dp.Link("d0", "d1", 1e12, 1e-9),))
    return dp.place(replace(graph, ops=ops), box, method="heft", time_limit_s=10, workers=1).plan


def compared(family: str, seed: int = 0) -> str:
    """``equal``, or where the placed step differs from plain PyTorch in loss, gradients or buffers.

    Raises
    ------
    DlplacerError
        If the model is refused.
    """
    job = job_of(family)
    plain = copy.deepcopy(job.module)
    placed = dp.apply(job, random_plan(dp.capture(job), seed), devices=["cpu:0", "cpu:1"])
    try:
        ours, theirs = placed(**job.kwargs), plain(**job.kwargs).loss
        ours.backward()
        theirs.backward()
        pairs = {"the loss": (ours, theirs)}
        mine = dict(placed.named_parameters())
        for name, parameter in plain.named_parameters():
            pairs[f"the gradient of {name}"] = (mine[name].grad, parameter.grad)
        mine_buffers = dict(placed.named_buffers())
        pairs |= {f"buffer {name}": (mine_buffers[name], buffer) for name, buffer in plain.named_buffers()}
        for name, (one, other) in pairs.items():
            if (one is None) != (other is None) or (
                one is not None and not torch.allclose(one, other, TOLERANCE, TOLERANCE)
            ):
                return f"{name} differs"
        return "equal"
    finally:
        placed.close()


def _verdict(family: str) -> str:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        found = compared(family)
    except dp.DlplacerError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"WRONG: {type(error).__name__}: {str(error)[:300]}"
    return found if found == "equal" else f"WRONG: {found}"


def main() -> None:
    """Print the verdict on each model and their numbers."""
    import transformers  # noqa: F401 (once for all processes)

    verdicts = []
    for family in sys.argv[1:] or MODELS:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            verdicts.append(pool.apply(_verdict, (family,)))
        print(f"{family:16} {verdicts[-1]}", flush=True)
    counts = {kind: sum(text.startswith(kind) for text in verdicts) for kind in ("equal", "refused", "WRONG")}
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))


if __name__ == "__main__":
    main()
