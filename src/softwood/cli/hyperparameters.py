"""Declared hyperparameters as options of a command: texts of a shell in, a dict of checked values out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from softwood.training.declaration import ByteSize, Declaration, Integer, Number, Values, quoted
from softwood.training.hyperparameters import all_declarations

_PANEL = "Hyperparameters (those of the estimators; docs/hyperparameters.md)"
_WIDEST_METAVAR = 27


class _Given(NamedTuple):
    """A value from the command line. None is such a value; an option that is absent is None without this around it."""

    value: Any


def option_names(name: str) -> tuple[str, ...]:
    """Options of a hyperparameter: the one with its name first, then the short ones.

    >>> option_names("max_epochs")
    ('--max-epochs', '--epochs')
    """
    return (f"--{name.replace('_', '-')}", *all_declarations()[name].aliases)


def with_hyperparameters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a command's parameter `hyperparameters`, a dict of those given, by one option for each of them.

    Left out are those that the command has as parameters of its own.
    """
    own = inspect.signature(command, eval_str=True).parameters
    declared = {name: d for name, d in all_declarations().items() if d.on_command_line and name not in own}
    parameters: list[inspect.Parameter] = []
    for parameter in own.values():
        if parameter.name == "hyperparameters":
            parameters += [_option(declaration) for declaration in declared.values()]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**arguments: Any) -> Any:
        found = {name: arguments.pop(name) for name in declared}
        given = {name: option.value for name, option in found.items() if option is not None}
        return command(**arguments, hyperparameters=given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _option(declaration: Declaration) -> inspect.Parameter:
    def parse(text: str | _Given) -> _Given:
        if isinstance(text, _Given):
            return text
        try:
            return _Given(declaration.domain.parse(text))
        except ValueError as error:
            raise typer.BadParameter(f"{declaration.name} {error}") from None

    metavar, help = " | ".join(_shell_words(declaration)), declaration.help.replace("`", "")
    if len(metavar) > _WIDEST_METAVAR:
        metavar, help = "name", f"{help} One of {', '.join(_shell_words(declaration))}."
    option = typer.Option(
        *option_names(declaration.name),
        parser=parse,
        metavar=metavar,
        help=help,
        show_default=_shell_word(declaration.default),
        rich_help_panel=_PANEL,
    )
    return inspect.Parameter(
        declaration.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Any, option]
    )


def _shell_words(declaration: Declaration) -> list[str]:
    """What may stand after an option: values as they are typed, numbers by their range."""
    words: list[str] = []
    for kind in declaration.domain.kinds:
        if isinstance(kind, Values):
            words += [_shell_word(value) for value in kind.values]
        elif isinstance(kind, (Integer, Number)):
            words.append(kind.notation)
        elif isinstance(kind, ByteSize):
            words.append("bytes, 512MB, 1GB")
    return words


def _shell_word(value: Any) -> str:
    return value if isinstance(value, str) else quoted(value).lower()
