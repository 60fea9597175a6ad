"""The prompts of the benchmark: held out, chosen by a rule that can be repeated, and never both tuned and measured."""

import json

import pytest

from specdec_course.benchmark import suites
from specdec_ref.training.prompts import all_prompts
from tests.course.toy_pair import toy_pair


@pytest.mark.parametrize("name", suites.NAMES)
def test_a_suite_holds_prompts_of_its_kind_that_no_training_sees(name):
    suite = suites.load(name)
    assert (len(suite.measured), len(suite.tuning)) == (suites.MEASURED, suites.TUNING)
    assert all(prompt.held_out and prompt.kind == name for prompt in suite.measured + suite.tuning)
    assert {prompt.id for prompt in suite.measured}.isdisjoint({prompt.id for prompt in suite.tuning})


def test_the_files_are_what_the_rule_chooses(tmp_path, monkeypatch):
    prompts = all_prompts()
    monkeypatch.setattr(suites, "all_prompts", lambda: prompts)
    for path in suites.write(tmp_path):
        assert path.read_bytes() == (suites.FOLDER / path.name).read_bytes(), "run `specdec bench suites`"


def test_a_changed_prompt_is_refused(tmp_path):
    content = json.loads((suites.FOLDER / "chat.json").read_text(encoding="utf-8"))
    content["measured"][0]["text"] += " Please."
    (tmp_path / "chat.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="was changed, or is not held out"):
        suites.load("chat", tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"measured": 3}'])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "chat.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"chat\.json"):
        suites.load("chat", tmp_path)
    with pytest.raises(ValueError, match="suite='poem'"):
        suites.load("poem")


def test_a_model_without_a_chat_template_continues_the_text():
    pair, prompt = toy_pair(), suites.load("story").measured[0]
    assert pair.tokenizer.decode(suites.encode(pair, prompt)) == prompt.text
    pair.tokenizer.bos_token = "<"
    assert suites.encode(pair, prompt)[0] == pair.tokenizer.bos_token_id


def test_a_chat_model_gets_a_message():
    pair, prompt = toy_pair(), suites.load("chat").measured[0]
    pair.tokenizer.chat_template = "{% for message in messages %}[{{ message.content }}]{% endfor %}:"
    assert pair.tokenizer.decode(suites.encode(pair, prompt)) == f"[{prompt.text}]:"
