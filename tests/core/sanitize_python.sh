#!/bin/sh
# Runs the Python tests of ops and torch with a module that was built with -fsanitize=address.
# usage: PYTHON=<interpreter with the test dependencies> sanitize_python.sh <build directory> [pytest arguments]
set -eu
build=$(cd "$1" && pwd)
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"

# A package of its own: the sources and the sanitized module. The interpreter below a virtual environment runs with the
# packages of the environment, but without its .pth files, which would find an installed softwood first.
rm -rf "$build/site"
mkdir -p "$build/site"
cp -r src/softwood "$build/site/softwood"
rm -f "$build"/site/softwood/_core*.so
cp "$build"/_core*.so "$build/site/softwood/"
packages=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
interpreter=$("$PYTHON" -c 'import sys; print(sys._base_executable)')
export PYTHONPATH="$build/site:$packages" PYTHONDONTWRITEBYTECODE=1

# libstdc++ as well, or libasan finds no function to throw exceptions with. Leaks are those of Python and PyTorch.
compiler=${CXX:-c++}
LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)"
export LD_PRELOAD ASAN_OPTIONS="detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"
"$interpreter" -c 'from softwood import _core; import sys; sys.exit("build" not in _core.__file__)'
exec "$interpreter" -m pytest -q -p no:cacheprovider "$@" tests/test_tape.py tests/test_ops.py tests/test_ops_memory.py \
  tests/test_torch.py tests/test_torch_errors.py tests/test_torch_fitted.py tests/test_torch_sparse.py tests/test_torch_work.py
