# `make` builds .venv/; `make help` lists the rest. ARGS go to the command: make train ARGS="--total-frames 1000000"
.DEFAULT_GOAL := venv
.PHONY: venv train test soak bench lint constraints clean help

# Written last, so an interrupted build has none; holds the folder it was built in, so a copied or moved tree has none either.
STAMP := .venv/.stamp
BUILDING := .venv/.building
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

# Of the tests. Some of them time real processes, so that there is one more than cores, not several.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 8 ? cores + 1 : 8)))

venv: $(STAMP)  ## build .venv/ (PYTHON=... names the interpreter; else a CPython 3.10 is searched for)

$(STAMP): pyproject.toml constraints.txt
	@python=$$(PYTHON='$(PYTHON)' scripts/find_python.sh) || exit 1; \
	if [ -e $(BUILDING) ] || [ "$$(cat $@ 2>/dev/null || pwd)" != '$(CURDIR)' ] || \
	  ! PYTHON=.venv/bin/python scripts/find_python.sh >/dev/null 2>&1; then rm -rf .venv; fi; \
	mkdir -p .venv && touch $(BUILDING) && rm -f $@ && \
	if [ ! -e .venv/bin/pip ]; then echo "Building .venv with $$python: one to four minutes."; "$$python" -m venv .venv; fi
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev]'
	@rm $(BUILDING) && echo '$(CURDIR)' > $@

train: venv  ## train on Pong; resumes the run when there is one
	.venv/bin/impala train pong $(ARGS)

# Bytecode is written even where the variable forbids it: some hundred processes import the same files.
test: venv  ## the tests, without the soak tests
	PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

soak: venv  ## the tests that take minutes to hours
	.venv/bin/python -m pytest -m soak --timeout=7200 $(ARGS)

bench: venv  ## rates of each part, the machine's bound, the end-to-end rate
	.venv/bin/impala bench $(ARGS)

lint: venv  ## ruff
	.venv/bin/python -m ruff check . $(ARGS)

constraints:  ## renew constraints.txt from pyproject.toml (needs uv)
	uv lock --upgrade
	uv export --frozen --all-extras --no-hashes --no-header --no-annotate --no-emit-project | sed 's/ *;.*//' > constraints.txt

clean:  ## remove caches and build leftovers; .venv/ and runs/ stay
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

help:
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14
