"""`specdec demo`: watch a language model decode speculatively, and see what it cost."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    pair: Annotated[str, typer.Option(help='"smol", "tiny", or "TARGET+DRAFT", two folders or hub names.')] = "smol",
    drafter: Annotated[str, typer.Option(help='Who drafts: "model" or "ngram".')] = "model",
    prompt: Annotated[str | None, typer.Option(help="The text to answer. Default: edit a short class.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Draft tokens per round. Default: 3, n-gram 5.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 128,
    batch: Annotated[int, typer.Option(help="Decode this many copies together; the first is shown.")] = 1,
    seed: Annotated[int, typer.Option(help="Row b of the batch uses seed + b.")] = 0,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16, or int8 (another target).")] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps. Default: the best one here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Watch a language model decode speculatively, then compare with plain decoding of the same prompt."""
    import json
    import sys

    from specdec_course.errors import CourseError

    try:
        print("loading the models ...", file=sys.stderr, flush=True)
        from specdec_course import demo as show
        from specdec_ref.pairs import load_pair
        from specdec_ref.sampling import SamplingSettings

        settings = SamplingSettings(temperature=temperature)
        usual = show.OPENING if pair == "tiny" else show.DEFAULT_PROMPT
        text = usual if prompt is None else prompt
        num_draft_tokens = k if k is not None else 5 if drafter == "ngram" else 3
        request = show.Request(text, num_draft_tokens, settings, max_new_tokens, batch, seed)
        models = load_pair(pair, dtype=dtype, device=device)
        if as_json:
            numbers = show.run_demo(models, models.drafter(drafter), request, lambda _: None)
            typer.echo(json.dumps({**numbers, "drafter": drafter}))
            return
        console = show.stdout_console()
        painter = show.Painter(models, console)
        numbers = show.run_demo(models, models.drafter(drafter), request, painter.show, painter.finish)
        console.print(show.report(numbers, drafter))
        console.print(show.verdict(numbers))
    except ValueError as error:  # the library says what was wrong in one sentence; so does the command
        raise CourseError(str(error)) from error
