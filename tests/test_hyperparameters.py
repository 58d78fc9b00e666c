"""Declared hyperparameters: what is made of the declaration says the same as the declaration."""

from __future__ import annotations

import dataclasses
import inspect
import re
import runpy
import typing
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import optuna
import pytest
from sklearn.base import clone

from cli_calls import ask
from softwood import TreeEnsembleClassifier, TreeEnsembleRegressor
from softwood.cli.commands import app
from softwood.cli.hyperparameters import option_names
from softwood.cli.tune import Search
from softwood.training import TrainingConfig, rules
from softwood.training.declaration import (
    Integer,
    Number,
    Values,
    check,
    declarations,
    declare,
    domain_of,
    keyword_parameters,
)
from softwood.training.hyperparameters import Hyperparameters, SearchRange, TableFacts, all_declarations, resolve_auto

ROOT = Path(__file__).parent.parent
ESTIMATORS = [TreeEnsembleClassifier, TreeEnsembleRegressor]
# Options of `softwood train` before their names became those of the estimators.
SHORT_OPTIONS = {
    "--trees": "n_trees", "--members": "n_members", "--epochs": "max_epochs", "--seed": "random_state",
    "--jobs": "n_jobs", "--depth": "depth", "--gamma": "gamma", "--learning-rate": "learning_rate",
    "--batch-size": "batch_size", "--l2": "l2", "--loss": "loss", "--time-limit": "time_limit",
}  # fmt: skip


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_constructors_are_as_declared(estimator):
    declared = declarations(estimator)
    expected = {name: declaration.default for name, declaration in declared.items()}
    signature = inspect.signature(estimator)
    assert {name: parameter.default for name, parameter in signature.parameters.items()} == expected
    assert {parameter.kind for parameter in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert estimator().get_params() == vars(estimator()) == expected
    changed = estimator(n_trees=3, loss="squared_error")
    assert clone(changed).get_params() == expected | {"n_trees": 3, "loss": "squared_error"}
    assert ("class_weight" in declared) == (estimator is TreeEnsembleClassifier)
    with pytest.raises(TypeError, match=rf"{estimator.__name__}\(\) got an unexpected keyword argument 'n_tree'\."):
        estimator(n_tree=3)
    with pytest.raises(TypeError, match=r"'max_depth'\. Did you mean 'depth'\?$"):
        estimator(max_depth=3)
    with pytest.raises(TypeError, match=r"'colour'\.$"):
        estimator(colour=3)
    with pytest.raises(TypeError):
        estimator(3)
    with pytest.raises(ValueError, match="Invalid parameter 'n_tree'"):
        estimator().set_params(n_tree=3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_docstrings_describe_each_parameter(estimator):
    section = inspect.getdoc(estimator).partition("Parameters\n")[2].partition("Attributes\n")[0]
    described = re.findall(r"^(\w+) : (.*), default=(.*)$", section, re.MULTILINE)
    assert described == [(d.name, d.notation, d.default_notation) for d in declarations(estimator).values()]
    for declaration in declarations(estimator).values():
        assert declaration.help in " ".join(section.split())
    assert all(len(line) <= 120 for line in estimator.__doc__.splitlines())


@pytest.mark.parametrize("declaration", all_declarations().values(), ids=list(all_declarations()))
def test_a_declaration_allows_its_default_and_what_is_searched(declaration):
    assert declaration.domain.accepts(declaration.default)
    assert declaration.help.endswith(".")
    assert "\n" not in declaration.help
    if isinstance(declaration.search, SearchRange):
        assert declaration.domain.accepts(declaration.search.low)
        assert declaration.domain.accepts(declaration.search.high)
    elif declaration.search is not None:
        assert all(declaration.domain.accepts(value) for value in declaration.search.values)
    if declaration.auto is not None:
        assert declaration.domain.accepts("auto")
        for facts in (TableFacts("binary", 10, 2, 2), TableFacts("regression", 10**6, 500, 0)):
            value = declaration.auto(facts, resolve_auto(TreeEnsembleClassifier().get_params(), facts))
            assert value != "auto"
            assert declaration.domain.accepts(value)


def values_of(domain):
    """The kinds of a domain, whatever the order in which an annotation names its values."""
    return {frozenset(map(repr, kind.values)) if isinstance(kind, Values) else kind for kind in domain.kinds}


def test_the_trainer_allows_what_is_declared():
    """A setting that the trainer shares with the estimators has the declared range; "auto" may be resolved before."""
    hints = typing.get_type_hints(TrainingConfig, include_extras=True)
    declared = all_declarations()
    shared = set(hints) & set(declared) - {"loss"}
    assert shared >= {"n_trees", "depth", "gamma_end", "max_features", "learning_rate", "l1", "optimizer"}
    for name in shared:
        allowed = hints[name] if declared[name].auto is None else hints[name] | Literal["auto"]
        assert values_of(domain_of(allowed)) == values_of(declared[name].domain), name
    resolved = resolve_auto(TreeEnsembleClassifier().get_params(), TableFacts("binary", 100, 3, 2))
    for field in dataclasses.fields(TrainingConfig):
        if field.name in shared:
            assert domain_of(hints[field.name]).accepts(resolved[field.name]), field.name


def test_auto_depends_on_task_and_size():
    params = {"l1": "auto", "weight_decay": 0.5, "optimizer": "auto", "depth": 3, "n_members": 1, "batch_size": "auto"}
    assert resolve_auto(params, TableFacts("multiclass", 100, 3, 4)) == params | {"l1": 0.1, "batch_size": 32}
    assert resolve_auto(params, TableFacts("regression", 100, 3)) == params | {"l1": 0.1, "batch_size": 32}
    assert resolve_auto(params, TableFacts("regression", 20_000, 3)) == params | {"l1": 0.05, "batch_size": 256}
    assert resolve_auto(params, TableFacts("binary", 90_000, 3, 2)) == params | {"l1": 0.15, "batch_size": 1024}


def test_penalties_fall_with_the_noise_of_an_epoch_where_the_batch_no_longer_grows():
    known = {"n_members": 2, "batch_size": "auto", "l1": "auto"}

    def penalties(n_rows):
        facts = TableFacts("binary", n_rows, 3, 2)
        resolved = resolve_auto(known, facts)
        return np.array([resolved["l1"], rules.weak_l1(facts, resolved)])

    np.testing.assert_array_equal(penalties(90_000), [0.15, 0.03])
    np.testing.assert_allclose(penalties(4_000_000), penalties(1_000_000) / 2)
    np.testing.assert_allclose(penalties(10**6), np.sqrt(90.51 * 1024 / 10**6) * np.array([0.15, 0.03]), rtol=1e-3)


def test_a_rule_sees_what_was_given_or_chosen_before():
    params = {"batch_size": 8, "max_epochs": "auto", "patience": "auto"}
    facts = TableFacts("binary", 80, 3, 2)
    assert resolve_auto(params, facts) == {"batch_size": 8, "max_epochs": 300, "patience": 30}
    longest = {"max_epochs": 1000, "patience": 100}
    assert resolve_auto(params | {"batch_size": "auto"}, facts) == {"batch_size": 32, **longest}
    assert resolve_auto(params, TableFacts("binary", 5, 3, 2)) == {"batch_size": 8, **longest}


def test_the_table_of_the_docs_is_as_declared():
    script = runpy.run_path(str(ROOT / "docs/write_tables.py"))
    page = (ROOT / "docs/hyperparameters.md").read_text()
    assert script["with_tables"](page, ["hyperparameters"]) == page, "run `python docs/write_tables.py`"
    assert page.count("| `depth` | int in [1, 20] |") == 1


# The command line ---------------------------------------------------------------------------------------------------


def train_options() -> dict[str, str]:
    """Options of `softwood train` and the parameter that each sets."""
    from typer.main import get_command

    command = get_command(app).commands["train"]
    return {name: parameter.name for parameter in command.params for name in parameter.opts}


def test_options_are_the_estimators_names():
    options = train_options()
    for name, declaration in all_declarations().items():
        assert declaration.on_command_line == (name in options.values()), name
        if declaration.on_command_line:
            assert [option for option, target in options.items() if target == name] == list(option_names(name))
    for option, name in SHORT_OPTIONS.items():
        assert options[option] == name
        assert options[f"--{name.replace('_', '-')}"] == name


def test_help_says_what_is_declared(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, printed, _ = ask(capsys, "train", "--help")
    words = " ".join(printed.replace("│", " ").split())
    for name, declaration in all_declarations().items():
        if declaration.on_command_line and name not in ("random_state", "n_jobs"):
            assert declaration.help.replace("`", "") in words, name


def test_options_reach_the_estimator(capsys, tmp_path, monkeypatch):
    seen = {}

    def fit(estimator, *_):
        seen.update(estimator.get_params())
        raise ValueError("enough")

    monkeypatch.setattr("softwood.cli.training._fit", fit)
    options = {
        "--n-trees": "3", "--gamma-end": "none", "--patience": "None", "--l1": "auto", "--weight-decay": "0.5",
        "--batch-norm": "fixed", "--activation": "logistic", "--validation-fraction": "0.25", "--encoding": "standard",
        "--optimizer": "adam", "--max-features": "1", "--seed": "7", "--n-jobs": "1", "--time-limit": "9",
        "--memory-limit": "2GB",
    }  # fmt: skip
    command = ["train", "iris", "-o", tmp_path / "m.safetensors", *(word for pair in options.items() for word in pair)]
    assert ask(capsys, *command)[2] == "error: enough\n"
    assert seen == TreeEnsembleClassifier().get_params() | {
        "n_trees": 3, "gamma_end": None, "patience": None, "l1": "auto", "weight_decay": 0.5, "batch_norm": "fixed",
        "activation": "logistic", "validation_fraction": 0.25, "encoding": "standard", "optimizer": "adam",
        "max_features": 1.0, "random_state": 7, "n_jobs": 1, "time_limit": 9.0, "verbose": 1,
        "memory_limit": "2GB",
    }  # fmt: skip
    ask(capsys, *command, "--batch-norm", "true")
    assert seen["batch_norm"] is True
    assert ask(capsys, *command, "--l1", "-1")[2] == (
        "error: Invalid value for '--l1': l1 must be a number of at least 0, or 'auto'; got '-1'. "
        "See: softwood train --help\n"
    )


def test_a_trial_draws_from_the_declared_ranges():
    """The ranges of the paper's appendix."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    l2 = []
    for _ in range(30):
        trial = study.ask()
        params = Search(task=None).suggest(trial)
        check(params, declarations(Hyperparameters))
        l2.append(params["l2"])
    assert set(params) == {name for name, d in all_declarations().items() if d.search is not None}
    ranges = {
        name: (d.choices if hasattr(d, "choices") else (d.low, d.high, d.log))
        for name, d in trial.distributions.items()
    }
    paper = {
        "n_trees": (1, 100, False),
        "depth": (2, 8, False),
        "gamma": (1e-4, 1.0, True),
        "learning_rate": (1e-5, 1e-1, True),
        "batch_size": (32, 64, 128, 256, 512),
        "max_epochs": (5, 100, False),
        "with_l2": (False, True),
    }
    assert ranges.items() >= paper.items()
    assert 0 < l2.count(0.0) < 30
    assert all(value == 0 or 1e-8 <= value <= 1e2 for value in l2)


# The mechanism ------------------------------------------------------------------------------------------------------


@keyword_parameters
class Base:
    size: Annotated[int, Integer(2, 5)] = declare(3, "Size.")
    share: Annotated[float, Number(0, 1, open_low=True, open_high=True)] | None = declare(1 / 3, "Share.")


@keyword_parameters
class Derived(Base):
    mode: Literal["a", "b"] | bool = declare("a", "Mode.", details="More.")
    size: Annotated[int, Integer(2)] | Literal["auto"] = declare("auto", "Size.")


def test_a_derived_class_adds_and_overrides():
    assert vars(Base(size=9)) == {"size": 9, "share": 1 / 3}
    assert vars(Derived(share=None)) == {"size": "auto", "share": None, "mode": "a"}
    assert list(declarations(Base)) == ["size", "share"]
    assert [d.notation for d in declarations(Derived).values()] == [
        'int >= 2 or "auto"', "float in (0, 1) or None", '"a", "b" or bool'
    ]  # fmt: skip
    assert not hasattr(Derived, "mode")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("size", 6, "size must be an integer from 2 to 5; got 6."),
        ("size", True, "size must be an integer from 2 to 5; got True."),
        ("size", 3.0, "size must be an integer from 2 to 5; got 3.0."),
        ("share", 0, "share must be a number above 0 and below 1, or None; got 0."),
        ("share", 1.0, "share must be a number above 0 and below 1, or None; got 1.0."),
        ("share", float("nan"), "share must be a number above 0 and below 1, or None; got nan."),
        ("share", "x", "share must be a number above 0 and below 1, or None; got 'x'."),
    ],
)
def test_what_is_not_declared_is_refused(name, value, message):
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        check({name: value}, declarations(Base))
    check(vars(Base()), declarations(Base))


def test_texts_become_values():
    parse = {name: declaration.domain.parse for name, declaration in declarations(Derived).items()}
    assert [parse["size"]("4"), parse["size"]("auto"), parse["share"]("NONE"), parse["share"]("5e-1")] == [
        4, "auto", None, 0.5
    ]  # fmt: skip
    assert parse["mode"]("true") is True
    for name, text in (("size", "4.5"), ("size", "Auto"), ("size", "1"), ("share", "1"), ("mode", "c")):
        with pytest.raises(ValueError, match=f"must be .*; got '{text}'"):
            parse[name](text)


def test_a_number_must_say_its_range():
    with pytest.raises(TypeError, match="must say which values it allows"):
        domain_of(int | None)


@pytest.mark.parametrize(
    ("task", "n_rows", "n_bins"), [("regression", 250, 24), ("regression", 10_000, 20), ("binary", 250, 8)]
)
def test_bins_follow_rows_and_task(task, n_rows, n_bins):
    assert rules.n_bins(rules.TableFacts(task, n_rows, 5), {}) == n_bins
