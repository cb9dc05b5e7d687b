"""A tokenizer and a model small enough to make on the spot, so that most tests download nothing.

The tokenizer is byte-level BPE with ChatML specials. By default it splits as SmolLM2's does (single
digits, GPT-2 words) and tool tags are plain text; with `tags=True` it is like Qwen2.5's: tool tags are
added tokens, text is NFC-normalised and split by Qwen's pattern. Both directories carry the project's
chat template.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
TEMPLATE = Path(__file__).parents[1] / "pipeline" / "renderers" / "chatml_tools.jinja"

_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_WORDS = (
    "system user assistant tool name arguments description parameters required type string integer number "
    "boolean enum city date flight hotel book cancel search price origin destination guest id error ok "
    "missing argument unknown the a of to in for and is I you please call one value result find cheapest"
)
_CORPUS = [
    f"{_WORDS}\n<tools>\n</tools>\n<tool_call>\n<tool_response>\n</tool_response>\n</tool_call>\n<think>\n</think>",
    '{"name":"search_flights","arguments":{"origin":"Rome","destination":"Oslo","date":"2026-05-01"}}',
    '{"name":"book","description":"Book","parameters":{"id":{"type":"string"}},"required":["id"]}',
]


def make_tiny_tokenizer(path: Path, *, tags: bool = False) -> Path:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `path`; returns `path`."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    if tags:
        tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_QWEN_SPLIT), "isolated") if tags else pre_tokenizers.Digits(True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not tags)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    if tags:
        tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    shutil.copyfile(TEMPLATE, path / "chat_template.jinja")
    return path


def make_tiny_model(path: Path, *, tags: bool = False, seed: int = 0) -> Path:
    """The tokenizer and a random Llama of about 0.1 M float32 parameters; returns `path`. Imports torch."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    make_tiny_tokenizer(path, tags=tags)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id("<|im_start|>"),
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(path)
    return path
