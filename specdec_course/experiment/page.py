"""The report as one HTML file: nothing is loaded from outside, no script runs, every text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from specdec_course.experiment import plots
from specdec_course.experiment.plan import TEXTS
from specdec_course.experiment.verdict import MARGIN, Measured, prompt_share, word
from specdec_course.figures import as_html

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
       background: #fff; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2rem; }
.verdict { border-left: .4rem solid #0072B2; background: #eef5fa; padding: .6rem 1rem; font-size: 1.1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th { background: #f4f4f4; vertical-align: bottom; } td:first-child, th:first-child { text-align: left; }
tr.faster td:first-child { border-left: .3rem solid #009E73; }
tr.SLOWER td:first-child { border-left: .3rem double #D55E00; }
figure { margin: 1rem 0; } figcaption { font-size: .9rem; color: #444; }
"""
Column = tuple[str, Callable[[Measured], Any]]


def number(value: float | None, digits: int = 2) -> str:
    """Return a number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def spread(ratio: dict[str, float | None]) -> str:
    """Return a median with its range over repetitions."""
    return f"{number(ratio['median'])} ({number(ratio['low'])} to {number(ratio['high'])})"


def both(cell: Measured, show: Callable[[dict[str, Any]], str]) -> str:
    """Return a figure without and with speculation."""
    return f"{show(cell['off'])} → {show(cell['on'])}"


CELL: list[Column] = [
    ("text", lambda cell: cell["text"]),
    ("answers", lambda cell: f"{cell['length']} ({cell['max_new_tokens']})"),
    ("T", lambda cell: f"{cell['temperature']:g}"),
    ("batch", lambda cell: cell["batch"]),
]
SPEED: list[Column] = [
    ("speculation is", word),
    ("speedup, whole requests", lambda cell: spread(cell["speedup"])),
    ("speedup, decoding alone", lambda cell: spread(cell["decode_speedup"])),
    ("predicted", lambda cell: number(cell["on"].get("predicted_speedup"))),
    ("tokens/s", lambda cell: both(cell, lambda side: number(side["all_tokens_per_s"], 1))),
    ("cost per million tokens", lambda cell: both(cell, lambda side: number(side["cost_per_million_tokens"], 1))),
]
ROUNDS: list[Column] = [
    ("K", lambda cell: cell["num_draft_tokens"]),
    ("alpha", lambda cell: number(cell["on"]["alpha"])),
    ("tokens a round", lambda cell: number(cell["on"]["emitted_per_round"])),
    ("a round costs, in plain steps", lambda cell: number(cell["round_cost"])),
    (
        "rounds without a draft",
        lambda cell: f"{cell['on']['rounds_without_draft']} of {cell['on']['row_rounds']}",
    ),
    ("T_t, T_d, T_v in ms", lambda cell: ", ".join(number(cell["on"].get(f"{one}_ms"), 1) for one in STEPS)),
]
STEPS = ("target_step", "draft_step", "verify")
WAITING: list[Column] = [
    ("tokens of all answers", lambda cell: both(cell, lambda side: str(side["new_tokens"]))),
    ("first token, ms", lambda cell: both(cell, lambda side: number(side["first_token_ms"], 0))),
    ("ms per token, p50", lambda cell: both(cell, lambda side: number(side["inter_token_ms"]["p50"], 1))),
    ("p95", lambda cell: both(cell, lambda side: number(side["inter_token_ms"]["p95"], 1))),
    ("whole answer, ms, p50", lambda cell: both(cell, lambda side: number(side["latency_ms"]["p50"], 0))),
    ("p95", lambda cell: both(cell, lambda side: number(side["latency_ms"]["p95"], 0))),
    ("first round's share, without", lambda cell: f"{prompt_share(cell):.0%}"),
]
MEMORY: list[Column] = [
    (title, lambda cell, part=part: number(cell["on"]["memory"].get(part, 0) / 1e6, 1))
    for title, part in (
        ("target's weights", "target_weights"),
        ("packed copies, at most", "packed_weights"),
        ("draft's weights", "draft_weights"),
        ("target's keys and values", "target_kv"),
        ("draft's keys and values", "draft_kv"),
    )
]


def page(experiment: dict[str, Any]) -> str:
    """Return the report."""
    cells, verdict, settings = experiment["cells"], experiment["verdict"], experiment["settings"]
    ran = [cell for cell in cells if "not_run" not in cell]
    title = f"Speculation on or off: {settings['target']}, drafts by {_drafter(settings)}"
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="verdict">{escape(verdict["sentence"])}</p>']
    parts += [f"<p>{escape(line)}</p>" for line in (verdict["caution"], verdict["texts"]) if line]
    parts += ["<h2>Where it does not pay</h2>", _list(verdict["losing"])]
    parts += ["<h2>Every cell</h2>", _note()]
    for caption, columns in (
        ("Speed and cost, without → with speculation", SPEED),
        ("Rounds", ROUNDS),
        ("What a reader waits for, without → with speculation", WAITING),
        ("Memory with speculation, in MB, from shapes; keys and values of the longest text", MEMORY),
    ):
        parts.append(table(caption, [*CELL, *columns], ran))
    if ran:
        parts += [
            "<h2>Figures</h2>",
            *(_figure(draw(cells)) for draw in (plots.speedups, plots.survival, plots.accepted)),
        ]
    if verdict["not_run"]:
        parts += ["<h2>Not run</h2>", _list(verdict["not_run"])]
    parts += ["<h2>What was run</h2>", _list(_method(experiment))]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(["<main>", *parts, "</main>"])
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>{body}</body></html>\n'


def table(caption: str, columns: Sequence[Column], cells: Sequence[Measured]) -> str:
    """Return a table, a row for each cell."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title, _ in columns)
    rows = []
    for cell in cells:
        values = "".join(f"<td>{escape(str(show(cell)))}</td>" for _, show in columns)
        rows.append(f'<tr class="{escape(word(cell), quote=True)}">{values}</tr>')
    body = "\n".join(rows)
    return (
        f'<div class="wide" tabindex="0"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _drafter(settings: dict[str, Any]) -> str:
    names = {"model": settings["draft"], "ngram": "n-gram matches"}
    return names.get(settings["drafter"], settings["drafter"])


def _figure(drawn: tuple[Any, str]) -> str:
    figure, alt = drawn
    return f"<figure>{as_html(figure, alt)}</figure>"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else "<p>Nowhere.</p>"


def _note() -> str:
    return (
        f"<p>“Faster” means: the median speedup of whole requests, prompts included, is above {MARGIN:g}, and no "
        "repetition lost. The range is that of all repetitions. Prompts, limits, sampling and batch are the same on "
        "both sides. Greedy answers are the same texts; sampled ones follow the same law, but need not end at the same "
        "token, so times are counted per token.</p>"
    )


def _method(experiment: dict[str, Any]) -> list[str]:
    machine, settings, peak = experiment["machine"], experiment["settings"], experiment["process_peak_bytes"]
    device = machine["processor"] if machine["device"] in ("cpu", "mps") else machine["device"]
    return [
        f"{settings['target']} in {settings['dtype']}, drafts by {_drafter(settings)}, engine: {settings['engine']}",
        f"{device}, threads: {machine['threads']}, torch {machine['torch']}, transformers {machine['transformers']}",
        "texts: " + "; ".join(f"{text}, {TEXTS.get(text, '')}" for text in settings["texts"]),
        f"prompts of each text, which no training saw: {settings['prompts']}; repetitions: {settings['repeats']}",
        "with and without speculation took turns, after a warm-up; who came first alternated",
        f"draft lengths tried on other prompts: {', '.join(map(str, settings['candidates']))}; each cell used its best",
        f"cost: machine at {settings['price_per_hour']:g} an hour, busy all the time",
        "peak of the whole process, both sides together: " + ("unknown" if peak is None else f"{peak / 1e6:.0f} MB"),
    ]
