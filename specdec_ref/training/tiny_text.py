"""Little stories in a small tokenizer of their own, and the openings that the tiny models continue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specdec_ref.training.answering import Answer, Question
from specdec_ref.training.corpus import Corpus, from_answers
from specdec_ref.training.prompts import Prompt

BEGIN, END = "<|begin|>", "<|end|>"


def train_tokenizer(texts: Sequence[str], vocab_size: int, folder: Path) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE, store it in `folder`, and return it. One that is there already is used as it is.

    Every text has tokens, since each byte is one; a text begins with `<|begin|>` and ends with `<|end|>`.
    """
    if not (folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[BEGIN, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        begin = (BEGIN, tokenizer.token_to_id(BEGIN))
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[begin])
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, pad_token=END)
        fast.save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def encode(stories: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Corpus:
    """Return stories as a corpus without laws: the prompt is `<|begin|>`, the answer is the story and `<|end|>`.

    Which side of the split a story is on follows from its words, as with every prompt.
    """
    begin, end = cast(int, tokenizer.bos_token_id), cast(int, tokenizer.eos_token_id)
    answers = [
        Answer(Question(Prompt("story", text), (begin,)), [*tokenizer.encode(text, add_special_tokens=False), end])
        for text in stories
    ]
    return from_answers(answers).without_laws()


def openings(encoded: Corpus, tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int]) -> list[Question]:
    """Return the first words of each answer as a question to continue, once for each of `lengths` (in tokens).

    Its id, side of the split, temperature and seed follow from its words, as with every prompt.
    """
    begin = cast(int, tokenizer.bos_token_id)
    found: dict[str, Question] = {}
    for length in lengths:
        for ids in encoded.answers():
            if len(ids) > length:
                prompt = Prompt("opening", str(tokenizer.decode(ids[:length].tolist())))
                found.setdefault(prompt.id, Question(prompt, (begin, *ids[:length].tolist())))
    return sorted(found.values(), key=lambda question: question.prompt.id)  # an id is a hash: a shuffled order
