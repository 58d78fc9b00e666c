"""Exported C: compiled with every warning an error, run under sanitizers, and compared on thousands of rows."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

import softwood
from fitted_models import CITIES, NAMES, fitted, mixed, predictions, rows
from softwood.export import ExportError, export

COMPILER = shutil.which("cc")
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2"]
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

# Reads rows from standard input, writes predictions to standard output.
DRIVER = """
#include <stdio.h>
#include "model.h"
int main(void) {
    double row[MODEL_N_COLUMNS], output[MODEL_N_OUTPUTS];
    while (fread(row, sizeof row, 1, stdin) == 1) {
        if (model_predict(row, output) != 0) return 1;
        fwrite(output, sizeof output, 1, stdout);
    }
    return 0;
}
"""


def compile_model(folder, model, *flags):
    """The program that reads rows of this model; `flags` come last."""
    export(model, folder / "model.c")
    (folder / "driver.c").write_text(DRIVER)
    sources = [str(folder / "model.c"), str(folder / "driver.c")]
    subprocess.run([COMPILER, *FLAGS, *flags, *sources, "-o", str(folder / "model"), "-lm"], check=True, timeout=120)
    return folder / "model"


def library(folder, model):
    export(model, folder / "model.c")
    path = folder / "model.so"
    command = [COMPILER, *FLAGS, "-shared", "-fPIC", str(folder / "model.c"), "-o", str(path), "-lm"]
    subprocess.run(command, check=True, timeout=120)
    return ctypes.CDLL(str(path))


def native_rows(name, X):
    """Rows as the C takes them: dates in seconds, categories by code."""
    if name != "mixed":
        return np.ascontiguousarray(X)
    predictor = fitted(name).predictor()
    seconds = (X["since"] - pd.Timestamp(0)) / pd.Timedelta(seconds=1)
    codes = {
        column: [predictor.category_code(column, None if pd.isna(v) else v) for v in X[column]]
        for column in ("colour", "city")
    }
    return pd.DataFrame({**X, **codes, "since": seconds}).to_numpy(dtype=np.float64)


@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_rows(name, tmp_path):
    X = rows(name, 3000)
    program = compile_model(tmp_path, fitted(name))
    output = subprocess.run(
        [program], input=native_rows(name, X).tobytes(), capture_output=True, check=True, timeout=60
    ).stdout
    expected = predictions(name, X)
    found = np.frombuffer(output).reshape(expected.shape)
    tolerance = 1e-6 if name == "logistic" else 1e-12
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@needs_compiler
@pytest.mark.parametrize("name", ["smoother", "logistic"])
def test_compilers_without_vectors(name, tmp_path):
    """The code for compilers other than GCC and Clang gives the same numbers."""
    X = rows(name, 500)
    found = []
    for flags in [[], ["-DONE_AT_A_TIME"]]:
        program = compile_model(tmp_path, fitted(name), *flags)
        found.append(subprocess.run([program], input=X.tobytes(), capture_output=True, check=True, timeout=60).stdout)
    assert found[0] == found[1]


@needs_compiler
@pytest.mark.parametrize("name", ["mixed", "quantiles", "multiclass"])
def test_under_sanitizers(name, tmp_path):
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-Wpedantic", "-Wconversion"]
    program = compile_model(tmp_path, fitted(name), *flags)
    X = rows(name, 300)
    output = subprocess.run(
        [program], input=native_rows(name, X).tobytes(), capture_output=True, check=True, timeout=60
    ).stdout
    expected = predictions(name, X)
    np.testing.assert_allclose(np.frombuffer(output).reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)


@needs_compiler
def test_hard_trees_route_alike(tmp_path):
    hard = fitted("binary").harden()
    X = rows("binary", 4000, seed=5)
    program = compile_model(tmp_path, hard)
    output = subprocess.run([program], input=X.tobytes(), capture_output=True, check=True, timeout=60).stdout
    np.testing.assert_allclose(np.frombuffer(output).reshape(-1, 2), hard.predict_proba(X), rtol=0, atol=1e-12)


@needs_compiler
def test_categories(tmp_path):
    code = library(tmp_path, fitted("mixed")).model_category_code
    predictor = fitted("mixed").predictor()
    column = list(mixed(1)).index("city")
    for label in [*CITIES, "Ankh-Morpork"]:
        assert code(column, ctypes.c_char_p(label.encode())) == predictor.category_code("city", label)
    assert code(column, None) == predictor.category_code("city", None)
    assert code(column - 1, None) == predictor.category_code("colour", None) >= 0
    assert code(0, ctypes.c_char_p(b"red")) == -1


@needs_compiler
def test_infinity_is_reported(tmp_path):
    predict = library(tmp_path, fitted("binary")).model_predict
    row, output = np.zeros(9), np.full(2, 7.0)
    row[4] = np.inf
    assert predict(row.ctypes.data_as(ctypes.c_void_p), output.ctypes.data_as(ctypes.c_void_p)) == 5
    np.testing.assert_array_equal(output, 7.0)


@needs_compiler
@pytest.mark.parametrize("stem", ["2nd model-v1", "while", "größe"])
def test_any_file_name_becomes_an_identifier(stem, tmp_path):
    written = export(fitted("binary"), tmp_path / f"{stem}.c")
    assert [path.name for path in written] == [f"{stem}.h", f"{stem}.c"]
    subprocess.run([COMPILER, *FLAGS, "-c", str(written[1]), "-o", str(tmp_path / "model.o")], check=True, timeout=120)


def test_bad_exports_leave_no_file(tmp_path):
    with pytest.raises(ValueError, match="A fitted model is needed; this TreeEnsembleClassifier is not fitted yet"):
        export(softwood.TreeEnsembleClassifier(), tmp_path / "model.c")
    with pytest.raises(ExportError, match=r"must end in \.onnx or \.c; got 'model\.txt'"):
        export(fitted("binary"), tmp_path / "model.txt")
    with pytest.raises(TypeError, match="A fitted softwood estimator or Model is needed; got dict"):
        export({}, tmp_path / "model.c")
    table = pd.DataFrame({"a": np.repeat(np.array(["x", "nul\0x"], dtype=object), 30), "b": np.arange(60.0)})
    strange = softwood.TreeEnsembleClassifier(n_members=1, max_epochs=1).fit(table, np.arange(60) % 2)
    with pytest.raises(ExportError, match="C cannot express category"):
        export(strange, tmp_path / "model.c")
    with pytest.raises(FileNotFoundError):
        export(fitted("binary"), tmp_path / "nowhere" / "model.c")
    (tmp_path / "taken.c").mkdir()  # the header can be written, the source cannot
    with pytest.raises(OSError, match="taken"):
        export(fitted("binary"), tmp_path / "taken.c")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.c"]
