"""`specdec mistakes`: for maintainers, tries the checks with wrong and right answers."""

from __future__ import annotations

from typing import Annotated

import typer


def mistakes(
    stage: Annotated[str | None, typer.Option(help="Only this stage, such as 02.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many sets of cases each answer meets.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list and nothing else on stdout.")] = False,
) -> None:
    """Show for each wrong answer on how many seeds it was refused and named, and right answers that were refused.

    Exit code 0 only when every mistake is caught and named on every seed and no right answer is refused.
    """
    import sys

    from rich.console import Console
    from rich.table import Table

    from specdec_course.checks import mistakes as trial
    from specdec_course.errors import CourseError

    chosen = [one for one in trial.stages() if stage is None or one == stage.zfill(2)]
    if not chosen:
        raise CourseError(f"there is no stage {stage!r} with exercises: choose one of {', '.join(trial.stages())}")
    rows: list[trial.Row] = []
    alarms: list[trial.FalseAlarm] = []
    variants = 0
    for one in chosen:
        print(f"stage {one} ...", file=sys.stderr, flush=True)
        answers = trial.answers_of(one)
        for name, mutants in answers.MUTANTS.items():
            rows += trial.try_mutants(name, mutants, seeds)
        for name, correct in answers.CORRECT.items():
            alarms += trial.try_correct(name, correct, seeds)
            variants += len(correct)
    if as_json:
        typer.echo(trial.as_json(rows))
    else:
        table = Table("exercise", "mistake", "caught", "named")
        for row in rows:
            table.add_row(row.exercise, row.mistake, f"{row.caught} of {seeds}", f"{row.named} of {seeds}")
        Console().print(table)
    told = [f"false alarm: {one.exercise}, {one.variant}, seed {one.seed}: {one.message}" for one in alarms]
    told.append(f"{len(alarms)} false alarms in {variants} right answers, {seeds} seeds each")
    print("\n".join(told), file=sys.stderr if as_json else sys.stdout)
    if alarms or any((row.caught, row.named) != (seeds, seeds) for row in rows):
        raise typer.Exit(code=1)
