"""One list of options: its fields, the command line, and what a study stores of a policy."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import optuna
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import optuna_deadline
from optuna_deadline import WorkerOptions
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.cli.app import as_command
from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.errors import DeadlineConflict, DeadlineError
from optuna_deadline.options import StudyOptions, options_of
from optuna_deadline.policies import HyperSched
from optuna_deadline.study import agreement, policy_choice
from optuna_deadline.study.terms import Given

_WORDS = st.text("abc/.-", min_size=1, max_size=8).filter(lambda text: text[0] != "-")
_TEXTS = {"sharing": st.sampled_from(["fair", "even"]), "max_time": st.just("55m")}


def _values(name: str, kind: Any) -> st.SearchStrategy[Any]:
    if name in _TEXTS:
        return _TEXTS[name]
    text = str(kind)
    if "bool" in text:
        return st.booleans()
    if "int" in text:
        return st.integers(1, 99)
    return st.floats(0.5, 1e6) if "float" in text else _WORDS


@given(st.data())
def test_the_words_of_options_are_read_as_the_same_options(data: st.DataObject) -> None:
    """SLURM and the demo start workers by these words."""
    each = {
        option.name: data.draw(_values(option.name, option.type), option.name)
        for option in options_of(WorkerOptions)
        if data.draw(st.booleans(), f"{option.name} is given")
    }
    asked = WorkerOptions(**each)
    found: list[WorkerOptions] = []
    group = typer.Typer()

    def take(options: WorkerOptions) -> None:
        found.append(options)

    group.command()(as_command(take))

    done = CliRunner().invoke(group, list(asked.words()), env={"OPTUNA_DEADLINE_HOST_TYPE": ""})
    assert done.exit_code == 0, done.output
    texts = {"checkpoints", "host_type"}
    for name in (field.name for field in fields(asked)):
        has, wants = getattr(found[0], name), getattr(asked, name)
        assert str(has or "") == str(wants or "") if name in texts else has == wants, name


def test_every_option_of_the_command_line_is_described_once() -> None:
    for kind in (WorkerOptions, StudyOptions):
        for option in options_of(kind):
            assert option.help.endswith("."), option.name


def test_an_object_is_stored_as_its_name_and_its_fields(sqlite_url: str) -> None:
    study = optuna.create_study(study_name="s", storage=sqlite_url)
    given = StudyOptions(deadline="1h", policy=HyperSched(recharge=8), n_trials=9).given
    found = agree(study, "1h", given)
    assert found.policy == "hypersched"
    assert (found.parameters["recharge"], found.parameters["n_trials"]) == (8, 9)
    made = policy_choice.make(found.policy, found.parameters)
    assert made == HyperSched(recharge=8, n_trials=9), "as any other process makes it"

    for same in (HyperSched(recharge=8), "hypersched", "hypersched:recharge=8", HyperSched):
        assert agree(study, "1h", StudyOptions(deadline="1h", policy=same).given) == found
    for other in (HyperSched(), HyperSched(recharge=8, gate=False), "hypersched:gate=false"):
        with pytest.raises(DeadlineConflict, match=r"recharge 5|gate False"):
            agree(study, "1h", StudyOptions(deadline="1h", policy=other).given)
    assert agreement.read(open_table(study), study) == found


def test_an_object_joins_a_study_that_has_its_name(sqlite_url: str) -> None:
    """A parameter that is not stored has the policy's default."""
    study = optuna.create_study(study_name="s", storage=sqlite_url)
    found = agree(study, "1h", Given("hypersched"))
    assert agree(study, "1h", StudyOptions(deadline="1h", policy=HyperSched()).given) == found
    with pytest.raises(DeadlineConflict, match=r"has recharge 5.0 .* asks for recharge 6"):
        agree(study, "1h", StudyOptions(deadline="1h", policy=HyperSched(recharge=6)).given)


def test_the_number_of_trials_is_given_once() -> None:
    with pytest.raises(DeadlineError, match="n_trials is 2, and the policy's n_trials is 3"):
        StudyOptions(deadline="1h", policy="fifo:n_trials=3", n_trials=2)


def test_the_surface_has_few_declarations() -> None:
    """An option is declared once, and passed as a part of one object."""
    assert len(inspect.signature(optuna_deadline.run).parameters) == 11
    declared = [*fields(WorkerOptions), *fields(StudyOptions)]
    for function in (optuna_deadline.run, ElasticWorker, agree, agreement.fix, Given):
        declared += inspect.signature(function).parameters
    assert len(declared) <= 90
