# make demo: the first minute.  make test: the tests.  Both install what they need into .venv first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SHOWN  := $(VENV)/.shown
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 10 --timeout 60 -c constraints.txt

.PHONY: demo fidelity papers test test-slow test-versions bench mutants lint graphs docs pages clean

demo: $(SHOWN)
	$(BIN)/python examples/00_first_minute.py --output demo

# The main job on two cores of this machine, predicted and measured: Inception-V3 with and without split ops, minutes.
fidelity: $(SHOWN)
	$(BIN)/python examples/01_main_job.py --output demo

# What the texts of five papers say beside what is computed here: docs/papers.md and a page for each, in minutes.
papers: $(SHOWN)
	$(BIN)/python examples/papers.py --output docs

test: $(READY)
	$(BIN)/pytest -m "not slow" -n 2 --dist loadgroup

test-slow: $(READY)
	$(BIN)/pytest

# The core of the suite on the lowest versions of Python and of what the package needs.
test-versions:
	python3.11 -m venv --clear .venv-lowest
	.venv-lowest/bin/pip install -q -c tests/versions/lowest.txt -e '.[torch,plot,partition,onnx]' hypothesis pytest pytest-timeout pytest-xdist
	.venv-lowest/bin/pytest -q -m 'not slow' -n 2 --dist loadgroup -W default::DeprecationWarning tests/core tests/files tests/check \
		tests/machines tests/problem tests/solvers tests/planning tests/report tests/data_parallel tests/models/test_small.py

# Every method on many graph families: geometric means; then what
# each phase of the default method earned.
bench: $(READY)
	$(BIN)/python tests/benchmarks/run_suite.py --quick
	$(BIN)/python tests/benchmarks/leave_one_out.py --rows build/leave_one_out.jsonl

# Small mistakes made by hand in every room: which of them do the nearest tests not notice?
mutants: $(READY)
	$(BIN)/python tests/benchmarks/mutants.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The graphs that ship: Inception-V3, batch 32, float32, with V100 roofline times.
graphs: $(READY)
	$(BIN)/dlplacer capture dlplacer.models:inception_v3 --device-type V100 --mode infer -o graphs/inception_v3-infer.json
	$(BIN)/dlplacer capture dlplacer.models:inception_v3 --device-type V100 -o graphs/inception_v3-train.json
	$(BIN)/dlplacer capture dlplacer.models:inception_v3 --device-type V100 --whole-backward --colocate-backward \
		-o graphs/inception_v3-train-colocated.json

# The pages of docs/ as HTML in docs/_build/html. A warning is an error; examples must print what they say, commands parse.
docs: pages
	$(BIN)/pytest -q tests/test_docs.py

# Without the examples and commands, which are among the tests too.
pages: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html

clean:
	rm -rf docs/_build docs/gallery_pages docs/reference/generated $(VENV) .venv-lowest demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(SHOWN): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dlplacer needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[torch,plot,partition]'
	$(BIN)/python -m dlplacer.solvers.local_search.compile_ahead
	touch $(SHOWN)

$(READY): $(SHOWN)
	$(PIP) -e '.[torch,plot,partition,onnx,gguf,examples,docs,test,lint]'
	touch $(READY)
