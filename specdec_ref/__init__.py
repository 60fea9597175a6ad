"""A compact reference for exact speculative decoding: the system this course teaches.

Read the files in this order; each holds one idea.

1. `sampling`    logits become a distribution, a distribution and one uniform become a token
2. `acceptance`  accept a draft token or correct it, so that the text follows the target exactly
3. `law`         the proof: the exact law of the emitted text, by enumeration
4. `cache`       keys and values with one length per row; rollback is a subtraction
5. `model`       a transformers model on that cache
6. `rows`        the texts being written: budgets, stop conditions, random keys
7. `decode`      `generate` (the plain loop) and `speculate` (draft, verify, commit)
8. `drafters`    who proposes: a smaller model, the text itself, or the target with `heads` of its own
9. `economics`   when it pays

Draft trees: `trees` has their shape, `siblings` judges sampled ones, `typical` is the lossy rule. More on when it pays:
`draft_shapes`, `roofline`, `serving`, `costs`. `training` makes the models and heads.

Around them: `kernels`, `packed` and `attention` make a pass over a few tokens cheap on a CPU, `measure` and `totals`
time decoders honestly, `this_machine` measures the device, `pairs` and `store` load models, `text` streams tokens as
text, `table` is a language model you can see whole, `device` and `ranges` are small help for all.
"""
