"""Drafters by name: one file and one line each, none aware of another, and each writes the target's own greedy text."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from specdec_ref import drafters
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import LayerChoice, LayerSkipDrafter, NgramDrafter, registry
from specdec_ref.pairs import Pair, load_pair
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY, SamplingSettings

pytestmark = pytest.mark.usefixtures("one_thread")

SHARED = {"base", "branching", "chain", "own_model", "two_tokenizers"}  # what drafters have in common
TEXTS = ("Once there was a", "It was a sunny morning. Tom", "The fox", "Mia went to the park and found a red ball")


@functools.cache
def tiny() -> Pair:
    return load_pair("tiny")


@functools.cache
def prompts() -> list[list[int]]:
    return [tiny().tokenizer(text)["input_ids"] for text in TEXTS]


@functools.cache
def plain() -> list[list[int]]:
    return collect(generate(tiny().target, prompts(), GREEDY, **options()))


def options() -> dict:
    return {"max_new_tokens": 12, "stop": Stop(tiny().eos_token_ids)}


def named(name: str) -> drafters.Drafter | None:
    """The drafter, or None where it needs trained weights or layers that are not there: the error must say so."""
    try:
        return tiny().drafter(name)
    except ValueError as error:
        assert "train one first" in str(error)
        return None


@pytest.mark.parametrize("name", list(registry.DRAFTERS))
def test_greedy_text_of_every_drafter_is_the_targets_own(name: str):
    drafter, target = named(name), tiny().target
    if drafter is None:
        return
    for batch in (1, 4):
        rounds = speculate(target, drafter, prompts()[:batch], GREEDY, num_draft_tokens=3, **options())
        assert collect(rounds) == plain()[:batch]
    sampled = collect(speculate(target, drafter, prompts(), SamplingSettings(0.8), num_draft_tokens=3, **options()))
    assert all(1 <= len(text) <= 12 for text in sampled)


def test_the_tiny_target_drafts_with_its_own_layers():
    drafter = LayerSkipDrafter(LayerChoice((0, 1, 3), 0.2))
    assert collect(speculate(tiny().target, drafter, prompts(), GREEDY, num_draft_tokens=3, **options())) == plain()


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"drafter='magic' is not known; known are .*ngram"):
        registry.make("magic", tiny())


def test_a_new_drafter_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(registry.DRAFTERS, "mine", lambda pair: NgramDrafter(5))
    found = tiny().drafter("mine")
    assert isinstance(found, NgramDrafter)
    assert found.max_ngram == 5


def test_no_drafter_is_aware_of_another():
    """What several need is in files of its own; only the registry and the package itself name them all."""
    for path in sorted(Path(drafters.__file__).parent.glob("*.py")):
        if path.stem in ("__init__", "registry"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specdec_ref.drafters"):
                named = (node.module or "").removeprefix("specdec_ref.drafters").removeprefix(".")
                assert named in SHARED, f"{path.name} imports {node.module}"
