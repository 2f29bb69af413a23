"""Small jobs of models that transformers builds from their configurations. Their forward returns the loss."""

from collections.abc import Callable
from typing import Any

import torch

from dlplacer.frontend import Job

TOKENS = 32


def bert() -> Job:
    """BERT-like: an encoder with a classifier, and a mask over padding."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        num_labels=3,
        **_without_dropout("hidden_dropout_prob", "attention_probs_dropout_prob"),
    )
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    kwargs = {"input_ids": _tokens(), "attention_mask": mask, "labels": torch.randint(3, (2,))}
    return Job(BertForSequenceClassification(config), kwargs=kwargs)


def gpt2() -> Job:
    """GPT-like: a decoder with tied input and output embeddings."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=TOKENS,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=8,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        **_without_dropout("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    )
    return _language_model(GPT2LMHeadModel(config))


def llama() -> Job:
    """Llama-like: rotary positions, grouped queries, gated feed-forward parts."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8,
    )
    return _language_model(LlamaForCausalLM(config))


def t5() -> Job:
    """T5-like: encoder and decoder, relative positions."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=TOKENS,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return Job(T5ForConditionalGeneration(config), kwargs={"input_ids": _tokens(), "labels": _tokens()})


def mixtral() -> Job:
    """Mixtral-like: a decoder with a mixture of experts in every layer."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=8,
    )
    return _language_model(MixtralForCausalLM(config))


BUILDERS: dict[str, Callable[[], Job]] = {
    "BERT-like": bert,
    "GPT-like": gpt2,
    "Llama-like": llama,
    "T5-like": t5,
    "Mixtral-like": mixtral,
}


def _tokens() -> torch.Tensor:
    return torch.randint(1, TOKENS, (2, 8))


def _language_model(module: Any) -> Job:
    tokens = _tokens()
    return Job(module, kwargs={"input_ids": tokens, "labels": tokens})


def _without_dropout(*names: str) -> dict[str, float]:
    return dict.fromkeys(names, 0.0)
