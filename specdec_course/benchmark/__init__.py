"""The side-by-side benchmark: all systems in one run, taking turns, on prompts that no training saw.

`suites` says what is asked, `systems`, `hugging_face` and `llama_engine` who answers, `run` in which order and at which
draft length, `bench` puts all this together. `figures`, `texts` and `report` tell what came of it, `schema` how that is
written down, `tables` and `plot` how it is shown.
"""
