"""A tokenizer of any vocabulary size: one token a byte, the other tokens never occur. Arms' interpreter."""

from __future__ import annotations

from pathlib import Path

_BEGIN, _END = "<|begin|>", "<|end|>"


def write(folder: Path, vocabulary: int) -> None:
    """Write `tokenizer.json` and its configuration. `vocabulary`: tokens, 258 or more; begin is 0, end is 1."""
    from gguf_llama import write_json  # type: ignore[import-not-found]  # beside this file on the path of make.py
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    filler = [f"<|unused_{i}|>" for i in range(vocabulary - 2 - len(alphabet))]
    tokens = [_BEGIN, _END, *alphabet, *filler]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_BEGIN, _END])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": _BEGIN, "eos_token": _END},
    )
