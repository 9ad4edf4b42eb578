# `make run` and `make test` are all a newcomer needs; both set up what they need first.
.DEFAULT_GOAL := help
.PHONY: help setup setup-run setup-spark run pipeline-demo test pytest checks quick coverage check fmt lint types imports explore compat faults chaos bench docs locks clean

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Tests start hundreds of servers. Where this variable forbids Python to keep compiled modules, each
# server compiles what changed since `make setup`: up to 2.0 s of CPU time per start instead of 0.7.
unexport PYTHONDONTWRITEBYTECODE

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Two stamps over one environment: the server alone installs in seconds, the tools of a
# contributor on top of it.  Locks are hashed and name no index; --no-build-isolation keeps
# the build back end inside the lock too.
.venv/.run: requirements/run.lock pyproject.toml
	tools/bootstrap.sh python
	test -x $(BIN)/pip || $(PYTHON) tools/environment.py .venv
	$(BIN)/python -m compileall -q src & $(PIP) --require-hashes -r requirements/run.lock && wait
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

.venv/.dev: .venv/.run requirements/dev.lock
	$(PIP) --require-hashes -r requirements/dev.lock
	touch $@

.venv/.awscli: .venv/.run requirements/awscli.lock
	test -x .venv/awscli/bin/pip || $(PYTHON) tools/environment.py .venv/awscli
	.venv/awscli/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/awscli.lock
	touch $@

# The tools that read what `penstock generate` writes.
.venv/.deploy: .venv/.run requirements/deploy.lock
	test -x .venv/deploy/bin/pip || $(PYTHON) tools/environment.py .venv/deploy
	.venv/deploy/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/deploy.lock
	touch $@

# PySpark is a source archive: its build back end is installed first, then it is built beside it.
.venv/.spark: .venv/.run requirements/spark-build.lock requirements/spark.lock
	$(PIP) --require-hashes -r requirements/spark-build.lock
	$(PIP) --require-hashes --no-build-isolation -r requirements/spark.lock
	touch $@

setup-spark: .venv/.spark  ## what the pipeline needs: Spark and a Java

setup: .venv/.dev .venv/.spark .venv/.awscli .venv/.deploy  ## create .venv with the server and every tool the tests use

setup-run: .venv/.run

run: setup-run  ## start a server on embedded defaults and say how to talk to it
	exec $(BIN)/penstock serve --hints

pipeline-demo: setup-run setup-spark  ## against a running server: messages, Spark jobs, a report page
	$(BIN)/python tools/pipeline_demo.py

check: setup lint types imports  ## ruff, mypy --strict, import contracts

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fmt: setup  ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

quick: setup  ## unit tests that are not slow, in at most 90 s; says how long they took
	@began=$$(date +%s); \
	QUICK=1 $(BIN)/pytest -q -n 4 -m "not slow and not compat and not faults" tests/unit; code=$$?; \
	echo "make quick took $$(($$(date +%s) - began)) s"; exit $$code

explore: setup  ## properties with examples that were not tried before
	EXPLORE=1 $(BIN)/pytest -q -n 2 tests/unit

# The checks run beside the tests; the failure of either fails the run after the other has ended.
test: setup  ## everything; what CI runs
	tools/bootstrap.sh tests
	@$(MAKE) --no-print-directory -j 2 pytest checks; code=$$?; tail -n 1 $(CHECKS); exit $$code

# The tests of a file stay together and in order: they share servers, and some go on from others.
# tests/conftest.py spreads the files over the workers. Five workers on two cores, for many tests
# wait.
pytest:
	$(BIN)/pytest -qq --collect-only >/dev/null || true  # compiles the tests once, not in each worker
	$(BIN)/pytest -n 5 --dist loadfile --no-loadscope-reorder

# Printed as a whole when they are finished, so that their lines do not mix with those of pytest.
CHECKS := .venv/checks.log
checks:
	@$(MAKE) --no-print-directory check >$(CHECKS) 2>&1; code=$$?; \
	test $$code = 0 && said=passed || said="FAILED, see $(CHECKS)"; \
	echo "checks: $$said" >>$(CHECKS); echo; cat $(CHECKS); exit $$code

coverage: setup  ## the share of lines and branches that the unit tests run
	rm -rf .venv/coverage && mkdir -p .venv/coverage
	$(BIN)/coverage run -m pytest -q -n 4 tests/unit
	$(BIN)/coverage combine -q && $(BIN)/coverage report --skip-covered --sort=miss

compat: setup
	$(BIN)/pytest -m compat

faults: setup  ## kills, power cuts, full disks, full sets; the fault lab, with a page in lab-report/
	tools/bootstrap.sh tests
	FULL=1 PENSTOCK_LAB_REPORT=lab-report $(BIN)/pytest -m "faults or faults_only or full_set"
	@echo "the lab's report: file://$(CURDIR)/lab-report/report.html"

chaos: setup  ## ten minutes of everything that can go wrong in the fault lab; page in lab-report/
	tools/bootstrap.sh tests
	$(BIN)/python -m tests.lab --profile chaos --report lab-report

bench: setup  ## measure against peers and limits; writes benchmarks/results/
	$(BIN)/python -m benchmarks

docs: setup  ## write the reference pages in docs/ from the code
	$(BIN)/python -m tools.references

locks:  ## resolve the requirement locks again (needs uv)
	uv pip compile pyproject.toml --group build --universal --generate-hashes --no-header -q -o requirements/run.lock
	uv pip compile pyproject.toml --extra cluster --group dev --universal --generate-hashes --no-header -q -o requirements/dev.lock
	uv pip compile pyproject.toml --extra spark --group build --group spark-build -c requirements/dev.lock --universal --generate-hashes --no-header -q -o requirements/spark.lock
	uv pip compile --group spark-build -c requirements/spark.lock --universal --generate-hashes --no-header -q -o requirements/spark-build.lock
	for name in awscli deploy moto localstack; do \
	  uv pip compile requirements/$$name.in --universal --generate-hashes --no-header -q -o requirements/$$name.lock; \
	done
	! grep -n '://' requirements/*.lock

clean:
	rm -rf .venv benchmarks/.venvs benchmarks/.cache benchmarks/.data benchmarks/profiles build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
