"""Small jobs of models that transformers builds from their configurations. Their forward returns the loss."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dlplacer.frontend import Job

TOKENS = 32
_DECODER = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 8,
}
_GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}
_NO_DROPOUT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}


def bert() -> Job:
    """An encoder with a classifier, and a mask over padding."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {name: size for name, size in _DECODER.items() if name != "num_key_value_heads"}
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = BertConfig(vocab_size=TOKENS, num_labels=3, **sizes, **dropout)
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    kwargs = {"input_ids": _tokens(), "attention_mask": mask, "labels": torch.randint(3, (2,))}
    return Job(BertForSequenceClassification(config), kwargs=kwargs)


def _language_model(name: str, model: str, **sizes: Any) -> Job:
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=TOKENS, **sizes)
    tokens = _tokens()
    labels = _tokens() if name == "T5" else tokens
    return Job(getattr(transformers, name + model)(config), kwargs={"input_ids": tokens, "labels": labels})


def _tokens() -> torch.Tensor:
    return torch.randint(1, TOKENS, (2, 8))


BUILDERS: dict[str, Callable[[], Job]] = {
    "BERT-like": bert,
    "GPT-like": partial(_language_model, "GPT2", "LMHeadModel", use_cache=False, **_GPT2, **_NO_DROPOUT),
    "Llama-like": partial(_language_model, "Llama", "ForCausalLM", **_DECODER),
    "T5-like": partial(_language_model, "T5", "ForConditionalGeneration", decoder_start_token_id=0, **_T5),
    "Mixtral-like": partial(
        _language_model,
        "Mixtral",
        "ForCausalLM",
        **(_DECODER | {"num_hidden_layers": 1}),
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
}
