"""Classes of options as parameters of commands: each field is an option of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

if TYPE_CHECKING:
    from optuna_deadline.options import CommandOption


class Without(tuple[str, ...]):
    """Fields that a command does not offer: ``Annotated[WorkerOptions, Without(["pool"])]``."""


class Only(tuple[str, ...]):
    """The fields that a command offers."""


@dataclass(frozen=True)
class OptionGroup:
    """A parameter of a command whose type is a class of options.

    Attributes:
        name: The parameter's name.
        kind: The class.
        options: The options that the command offers.
    """

    name: str
    kind: type[Any]
    options: Sequence[CommandOption]

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> OptionGroup | None:
        """The group of a parameter; None if its type is not a class of options."""
        asked = parameter.annotation
        kind, *metadata = get_args(asked) if get_origin(asked) is Annotated else (asked,)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            return None
        from optuna_deadline.options import options_of  # not for commands without such options

        options = list(options_of(kind))
        for names in metadata:
            if isinstance(names, (Only, Without)):
                wanted = isinstance(names, Only)
                options = [each for each in options if (each.name in names) is wanted]
        return cls(parameter.name, kind, options)

    def parameters(self) -> list[inspect.Parameter]:
        """The options, as parameters that Typer reads."""
        return [_parameter(each) for each in self.options]

    def collect(self, given: dict[str, Any]) -> None:
        """Replace the options by one object.

        Raises:
            DeadlineError: An option has an invalid value.
        """
        given[self.name] = self.kind(**{each.name: given.pop(each.name) for each in self.options})


def _parameter(option: CommandOption) -> inspect.Parameter:
    # A flag alone, since Typer would add --no-NAME.
    flags = [f"--{option.name.replace('_', '-')}"] if option.type is bool else []
    about = typer.Option(*flags, help=option.help, envvar=option.variable)
    default = option.default
    if default is MISSING:
        default = inspect.Parameter.empty
    elif isinstance(default, Path):
        default = str(default)
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[option.type, about],
    )


def expand(
    signature: inspect.Signature,
    others: Mapping[str, Sequence[inspect.Parameter]],
) -> tuple[list[inspect.Parameter], Callable[[dict[str, Any]], None]]:
    """Replace parameters of a command by those that the command line has.

    Args:
        signature: The command's signature.
        others: Replacements of further parameters by their names.

    Returns:
        The parameters, and a function that turns the values of a call into those of the command.
    """
    groups = [group for each in signature.parameters.values() if (group := OptionGroup.of(each))]
    replaced = {**others, **{group.name: group.parameters() for group in groups}}
    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        here = each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += replaced.get(each.name, [here])

    def collect(given: dict[str, Any]) -> None:
        for group in groups:
            group.collect(given)

    return parameters, collect
