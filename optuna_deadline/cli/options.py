"""Options that several commands have: what they mean is said once."""

from __future__ import annotations

from typing import Annotated

import typer

from optuna_deadline.values.budgets import HOST_TYPE

Deadline = Annotated[str, typer.Option(help="2h30m, or 2030-01-31T18:00+01:00.")]
PolicyName = Annotated[str, typer.Option(help="Who decides: a name, FILE.py:NAME or MODULE:NAME.")]
MinResource = Annotated[int, typer.Option(help="First rung, in report steps.")]
MaxResource = Annotated[
    int | None, typer.Option(help="Step at which a trial is done; the objective's by default.")
]
ReductionFactor = Annotated[
    int | None, typer.Option(help="A rung keeps one in this many; the policy's own by default.")
]
MaxSlots = Annotated[
    int | None, typer.Option(help="The most slots that a trial may have; any number by default.")
]
Money = Annotated[str | None, typer.Option(help="What may be spent, as in 20usd; needs --price.")]
SlotPrice = Annotated[
    str | None,
    typer.Option(help="Of a slot for an hour: 0.9; or by host type, a=12.24/4,b=0.526."),
]
PriceFile = Annotated[
    str | None,
    typer.Option(help="CSV of prices by host type; FILE.csv:TYPE,PRICE,SLOTS names its columns."),
]
HostType = Annotated[
    str | None,
    typer.Option(envvar=HOST_TYPE, help="This host's type, where prices go by it."),
]
Earlier = Annotated[
    list[str] | None,
    typer.Option(help="A study of the same search: begin with what was best in it; again."),
]
ObjectivePlace = Annotated[str, typer.Argument(help="FILE.py:FUNCTION or MODULE:FUNCTION.")]
CheckpointPlace = Annotated[
    str, typer.Option(help="Folder for checkpoints, or a URL such as s3://bucket/folder.")
]
Patience = Annotated[
    float, typer.Option(help="Seconds without a word after which a trial counts as hung.")
]
Park = Annotated[
    int,
    typer.Option(help="Paused trials that may wait in this machine's memory, off their slots."),
]
Publish = Annotated[
    bool | None,
    typer.Option(help="Keep optuna-dashboard fresh; by default where it is installed."),
]
AcrossHosts = Annotated[
    bool,
    typer.Option(
        "--across-hosts", help="Let these slots be in one gang with those of other hosts."
    ),
]
