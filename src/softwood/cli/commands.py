"""The command `softwood`: its subcommands and the examples in their help.

`softwood.cli.training`, `softwood.cli.applying`, `softwood.cli.compressing` and `softwood.cli.explaining` hold the
subcommands. Errors are turned into one line by `softwood.__main__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

import softwood
from softwood.cli.applying import evaluate, export, info, predict
from softwood.cli.compressing import compress
from softwood.cli.console import examples
from softwood.cli.example_tables import EXAMPLES
from softwood.cli.explaining import explain, plot, report
from softwood.cli.training import train, tune

app = typer.Typer(
    help="Soft decision trees for tables: train, evaluate, use and explain a model without writing code.",
    epilog=f"A table is a .csv, .tsv (also .gz) or .parquet file, or a built-in one: {', '.join(EXAMPLES)}.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(softwood.__version__)
        raise typer.Exit


_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    train: (
        "softwood train breast-cancer --report",
        "softwood train data.csv --target churned --drop id",
        "softwood train 'data/*.parquet' -t churned --memory-limit 2GB",
        "softwood train sales.parquet -t price --task regression --max-epochs 20 --out price.safetensors",
    ),
    evaluate: ("softwood evaluate model.safetensors new.csv --target churned --json",),
    predict: (
        "softwood predict model.safetensors new.csv -o out.csv --keep id",
        "softwood predict model.safetensors huge.parquet -o out.parquet --batch-rows 100000",
        "softwood predict model.safetensors 'in/*.parquet' -o out --workers 4",
        "softwood predict model.safetensors new.csv | head",
    ),
    info: ("softwood info model.safetensors", "softwood info model.safetensors --json"),
    tune: (
        "softwood tune data.csv -t churned --trials 50 --out best.json",
        "softwood train data.csv -t churned --params best.json --n-members 6",
        "softwood tune data.csv -t churned --storage postgresql://host/studies",
    ),
    compress: (
        "softwood compress model.safetensors train.csv -o small.safetensors",
        "softwood compress model.safetensors train.csv -o small.safetensors --max-parameters 5000 --plot size.svg",
    ),
    export: ("softwood export model.safetensors model.onnx", "softwood export model.safetensors model.c"),
    explain: ("softwood explain model.safetensors", "softwood explain model.safetensors new.csv --row 3"),
    plot: (
        "softwood plot importances model.safetensors",
        "softwood plot tree model.safetensors new.csv --out tree.pdf",
        "softwood plot path model.safetensors new.csv --row 3 --member 0 --tree 5",
    ),
    report: ("softwood report model.safetensors test.csv --out report.html",),
}
for _command, _lines in _EXAMPLES.items():
    app.command(epilog=examples(*_lines))(_command)
