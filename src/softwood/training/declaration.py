"""Parameters declared once: a type with its range, a default and a line of help.

In comes a class whose fields are declared; out come its keyword-only ``__init__``, checks with their error messages,
the Parameters section of its docstring, and values parsed from text for the command line. The declarations themselves
are in `softwood.training.hyperparameters`.

>>> @keyword_parameters
... class Oven:
...     heat: Annotated[float, Number(0, 300, open_low=True)] | Literal["auto"] = declare("auto", "Degrees Celsius.")
>>> Oven(heat=220).heat
220
>>> check(vars(Oven(heat=-1)), declarations(Oven))
Traceback (most recent call last):
...
ValueError: heat must be a number above 0 and at most 300, or 'auto'; got -1.
>>> print(parameters_section(Oven))
    heat : float in (0, 300] or "auto", default="auto"
        Degrees Celsius.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
import textwrap
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # type checkers alone need it

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        return lambda decorator: decorator


__all__ = [
    "Annotated",
    "ByteSize",
    "Declaration",
    "Integer",
    "Literal",
    "Number",
    "Unchecked",
    "Values",
    "check",
    "check_fields",
    "declarations",
    "declare",
    "keyword_parameters",
    "n_bytes",
    "parameters_section",
    "quoted",
]

T = TypeVar("T")


# What a value may be -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """Finite numbers of an interval, which may leave out its ends."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    @property
    def words(self) -> str:
        """As error messages call it."""
        parts = [f"{'above' if self.open_low else 'of at least'} {self.low:g}"] if self.low > -math.inf else []
        if self.high < math.inf:
            parts.append(f"{'below' if self.open_high else 'at most'} {self.high:g}")
        return f"a number {' and '.join(parts)}".rstrip()

    @property
    def notation(self) -> str:
        """As docstrings and tables call it."""
        return "float" + _interval(self.low, self.high, self.open_low, self.open_high)

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, Real) or isinstance(value, bool):
            return False
        try:
            number = float(value)
        except OverflowError:  # an integer that no float holds
            return False
        if not math.isfinite(number):
            return False
        above = number > self.low if self.open_low else number >= self.low
        return above and (number < self.high if self.open_high else number <= self.high)

    def parse(self, text: str) -> Any:
        return float(text)


@dataclass(frozen=True)
class Integer:
    """Whole numbers of an interval, one of which may be excluded."""

    low: float = -math.inf
    high: float = math.inf
    excluded: int | None = None

    @property
    def words(self) -> str:
        if self.excluded is not None:
            return f"an integer other than {self.excluded}"
        if self.high < math.inf:
            return f"an integer from {self.low} to {self.high}"
        return f"an integer of at least {self.low}"

    @property
    def notation(self) -> str:
        excluded = "" if self.excluded is None else f" != {self.excluded}"
        return f"int{_interval(self.low, self.high)}{excluded}"

    def accepts(self, value: Any) -> bool:
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)
        return is_integer and self.low <= value <= self.high and value != self.excluded

    def parse(self, text: str) -> Any:
        return int(text)


@dataclass(frozen=True)
class Values:
    """A few fixed values: strings, None, True and False."""

    values: tuple[Any, ...]

    @property
    def words(self) -> str:
        return _listed([repr(value) for value in self.values])

    @property
    def notation(self) -> str:
        names = ["bool" if value is True else quoted(value) for value in self.values if value is not False]
        if all(isinstance(value, str) for value in self.values) and len(names) > 1:
            return f"{{{', '.join(names)}}}"
        return _listed(names)

    def accepts(self, value: Any) -> bool:
        return any(value is known or (isinstance(value, str) and value == known) for known in self.values)

    def parse(self, text: str) -> Any:
        for value in self.values:
            if text == value or (not isinstance(value, str) and text.lower() == str(value).lower()):
                return value
        raise ValueError(text)


@dataclass(frozen=True)
class Instance:
    """Objects of a class, or callables; the command line has no way to write them."""

    kind: type | None

    @property
    def words(self) -> str:
        return "a callable" if self.kind is None else f"a {self.kind.__name__}"

    @property
    def notation(self) -> str:
        return self.words.removeprefix("a ")

    def accepts(self, value: Any) -> bool:
        return callable(value) if self.kind is None else isinstance(value, self.kind)

    def parse(self, text: str) -> Any:
        raise ValueError(text)


@dataclass(frozen=True)
class Unchecked:
    """Anything: the code that uses the value checks it."""

    notation: str
    words: str = "anything"

    def accepts(self, value: Any) -> bool:
        return True

    def parse(self, text: str) -> Any:
        raise ValueError(text)


@dataclass(frozen=True)
class ByteSize:
    """Sizes of memory: whole numbers of bytes, or texts such as "1GB", "512MB" or "1.5 GiB"; see `n_bytes`."""

    notation: str = "int or str"
    words: str = "a number of bytes, or a text such as '1GB' or '512MB'"

    def accepts(self, value: Any) -> bool:
        try:
            return n_bytes(value) > 0
        except ValueError:
            return False

    def parse(self, text: str) -> Any:
        return int(text) if text.isdecimal() else text


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def n_bytes(size: Any) -> int:
    """Bytes of a size: a whole number, or a text.

    >>> n_bytes("1GB"), n_bytes("1.5 MiB"), n_bytes(4096)
    (1000000000, 1572864, 4096)
    """
    if isinstance(size, Integral) and not isinstance(size, bool):
        return int(size)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)B\s*", size.upper()) if isinstance(size, str) else None
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"A size must be {ByteSize.words}; got {size!r}.")
    return int(float(match[1]) * _UNITS[match[2]])


Kind = Number | Integer | Values | Instance | Unchecked | ByteSize


@dataclass(frozen=True)
class Domain:
    """All values that an annotation allows."""

    kinds: tuple[Kind, ...]

    @property
    def words(self) -> str:
        *first, last = [kind.words for kind in self.kinds]
        return f"{', '.join(first)}, or {last}" if first else last

    @property
    def notation(self) -> str:
        return _listed([kind.notation for kind in self.kinds])

    def accepts(self, value: Any) -> bool:
        return any(kind.accepts(value) for kind in self.kinds)

    def parse(self, text: str) -> Any:
        """The value that a text of the command line stands for; a ValueError says what is allowed."""
        for kind in self.kinds:
            try:
                value = kind.parse(text)
            except ValueError:
                continue
            if kind.accepts(value):
                return value
        raise ValueError(f"must be {self.words}; got {text!r}.")


def domain_of(annotation: Any) -> Domain:
    """The values of a resolved annotation; neighbouring values join: ``bool | Literal["fixed"]`` is one list."""
    kinds: list[Kind] = []
    for kind in _kinds(annotation):
        if kinds and isinstance(kind, Values) and isinstance(kinds[-1], Values):
            kind = Values(kinds.pop().values + kind.values)  # type: ignore[union-attr]
        kinds.append(kind)
    return Domain(tuple(kinds))


def _kinds(annotation: Any) -> list[Kind]:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    if origin is Annotated:
        return [annotation.__metadata__[0]]
    if origin is Literal:
        return [Values(get_args(annotation))]
    if origin is not None and issubclass(origin, Callable):  # type: ignore[arg-type]
        return [Instance(None)]
    if annotation is bool:
        return [Values((True, False))]
    if annotation is type(None):
        return [Values((None,))]
    if annotation in (int, float) or not isinstance(annotation, type):
        raise TypeError(f"{annotation} must say which values it allows, e.g. Annotated[int, Integer(1)].")
    return [Instance(annotation)]


# Declarations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Declaration:
    """One parameter; see `declare`."""

    default: Any
    help: str
    details: str
    aliases: tuple[str, ...]
    on_command_line: bool
    search: Any
    auto: Callable[[Any, Mapping[str, Any]], Any] | None
    name: str = ""
    domain: Domain = Domain(())
    notation: str = ""
    elsewhere: tuple[str, ...] = ()

    @property
    def default_notation(self) -> str:
        """The default as docstrings and tables write it."""
        return quoted(self.default)


def declare(
    default: Any,
    help: str,
    *,
    details: str = "",
    notation: str = "",
    aliases: tuple[str, ...] = (),
    on_command_line: bool = True,
    search: Any = None,
    auto: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    elsewhere: tuple[str, ...] = (),
) -> Any:
    """Declare a field of a class that `keyword_parameters` decorates; its annotation says what it may be.

    Parameters
    ----------
    default
        Default value.
    help : str
        One line, for docstrings, tables and the command line.
    details : str
        More, for docstrings only.
    notation : str
        How docstrings name the type, where what follows from the annotation reads badly.
    aliases : tuple of str
        Short options of the command line beside the one with the parameter's name.
    on_command_line : bool
        Whether `softwood train` has an option for it.
    search : optional
        Where `softwood tune` looks; None leaves the parameter alone.
    auto : callable, optional
        What the value "auto" stands for, given what is known of the table when `fit` begins, and the parameters that
        are declared before this one.
    elsewhere : tuple of str
        Names of the parameter in other libraries, which an error message translates.
    """
    return Declaration(
        default, help, details, aliases, on_command_line, search, auto, notation=notation, elsewhere=elsewhere
    )


def _suggestion(name: str, declared: Mapping[str, Declaration]) -> str:
    """The parameter that has this name in another library, or a similar name."""
    meant = [known for known, declaration in declared.items() if name in declaration.elsewhere]
    meant = meant or difflib.get_close_matches(name, declared, n=1, cutoff=0.75)
    return f" Did you mean {meant[0]!r}?" if meant else ""


@dataclass_transform(kw_only_default=True, eq_default=False)
def keyword_parameters(cls: type[T]) -> type[T]:
    """Give a class an ``__init__`` that keeps its declared fields, and those of its bases, as attributes.

    Type checkers read such a class as a dataclass with keyword-only fields. It is none at run time: libraries that
    compare or copy dataclasses field by field would overlook what `fit` adds.
    """
    hints = get_type_hints(cls, include_extras=True)
    declared: dict[str, Declaration] = dict(getattr(cls, "_declarations", {}))
    for name, value in list(vars(cls).items()):
        if isinstance(value, Declaration):
            domain = domain_of(hints[name])
            declared[name] = replace(value, name=name, domain=domain, notation=value.notation or domain.notation)
            delattr(cls, name)

    def __init__(self: Any, **given: Any) -> None:
        unknown = given.keys() - declared.keys()
        if unknown:
            name = min(unknown)
            raise TypeError(
                f"{type(self).__name__}() got an unexpected keyword argument {name!r}.{_suggestion(name, declared)}"
            )
        for name, declaration in declared.items():
            setattr(self, name, given.get(name, declaration.default))

    parameter = inspect.Parameter
    signature = [parameter("self", parameter.POSITIONAL_OR_KEYWORD)]
    signature += [parameter(d.name, parameter.KEYWORD_ONLY, default=d.default) for d in declared.values()]
    __init__.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = __init__  # type: ignore[method-assign]
    cls._declarations = declared  # type: ignore[attr-defined]
    return cls


def declarations(cls: type) -> dict[str, Declaration]:
    """Declared parameters of a class by name, in their order."""
    return dict(cls._declarations)  # type: ignore[attr-defined]


def check(values: Mapping[str, Any], declared: Mapping[str, Declaration]) -> None:
    """Raise a ValueError for the first value that its declaration does not allow."""
    for name, declaration in declared.items():
        if name in values:
            _require(declaration.domain, name, values[name])


def check_fields(instance: object) -> None:
    """Raise a ValueError for the first field of a dataclass that its annotation does not allow."""
    for name, annotation in get_type_hints(type(instance), include_extras=True).items():
        _require(domain_of(annotation), name, getattr(instance, name))


def _require(domain: Domain, name: str, value: Any) -> None:
    if not domain.accepts(value):
        raise ValueError(f"{name} must be {domain.words}; got {value!r}.")


# Texts ---------------------------------------------------------------------------------------------------------------


def parameters_section(cls: type) -> str:
    """The entries of a docstring's Parameters section, indented as in a class."""
    entries = []
    for name, declaration in declarations(cls).items():
        text = textwrap.wrap(f"{declaration.help} {declaration.details}".strip(), width=112)
        entries.append(f"    {name} : {declaration.notation}, default={declaration.default_notation}")
        entries += [f"        {line}" for line in text]
    return "\n".join(entries)


def quoted(value: Any) -> str:
    """A value as docstrings write it: strings in double quotes, simple fractions as such.

    >>> quoted("auto"), quoted(1 / 6), quoted(0.008)
    ('"auto"', '1/6', '0.008')
    """
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and len(repr(value)) > 10:
        fraction = Fraction(value).limit_denominator(100)
        return str(fraction) if float(fraction) == value else f"{value:g}"
    return repr(value)


def _listed(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _interval(low: float, high: float, open_low: bool = False, open_high: bool = False) -> str:
    if low == -math.inf and high == math.inf:
        return ""
    if high == math.inf:
        return f" {'>' if open_low else '>='} {low:g}"
    return f" in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
