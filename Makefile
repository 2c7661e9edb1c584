# `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
PYTEST_ARGS ?=
SEEDS ?= 3000
MINUTES ?= 10
SEED ?= 1
REPEAT ?= 1
SAMPLE_SEED ?= $(shell git rev-parse --short HEAD 2>/dev/null || date +%F)
NATIVE_SOURCES := $(wildcard _native/*.pyx _native/*.pxi)

.PHONY: help quickstart check test test-all house generate test-jars test-npm test-mutations simulate test-containers test-operations alerts wheels lint chaos spark-chaos spark-chaos-sample spark-versions perf format setup clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

quickstart: $(READY) ## three brokers, real data, Spark; kills drivers, a worker and a broker; exactly once (SECURE=1: with TLS, logins, ACLs)
	@$(BIN)/python -m examples.flights $(if $(SECURE),--secure)

check: $(READY) ## one file of tests or more, on one worker, until the first fails: make check FILE="tests/log/test_append.py"
	@$(BIN)/python -m pytest -n 0 -q -x -m "" $(or $(FILE),$(error which FILE?)) $(PYTEST_ARGS)

TESTS := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not kafka_jars and not containers and not mutations and not npm" --durations 15

test: $(READY) ## ten minutes of tests: all short ones, of the longer ones a draw by the commit (PYTEST_ARGS="tests/log -k recovery" runs some)
	@FLEETLOG_SAMPLE=$(or $(FLEETLOG_SAMPLE),$(SAMPLE_SEED)) $(TESTS) $(PYTEST_ARGS)

test-all: $(READY) ## all of them: three quarters of an hour
	@FLEETLOG_SAMPLE= $(TESTS) $(PYTEST_ARGS)

test-jars: $(READY) ## tests with Apache Kafka's own jars, from Maven
	@$(BIN)/python -m pytest -m kafka_jars tests/kafka_jars $(PYTEST_ARGS)

test-npm: $(READY) ## by hand: clients that are packages of npm, which are fetched
	@$(BIN)/python -m pytest -m npm tests/npm $(PYTEST_ARGS)

test-mutations: $(READY) ## deliberate bugs that the simulation must catch (several minutes)
	@$(BIN)/python -m pytest -n $(WORKERS) -m mutations tests/simulation $(PYTEST_ARGS)

simulate: $(READY) ## simulate many histories (SEEDS=100000; "python -m tests.simulation SEED --trace" shows one)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --jobs $(WORKERS) $(if $(SIMULATED_S),--seconds $(SIMULATED_S))

test-containers: $(READY) ## tests in containers; installs and starts a Docker engine if none answers (as root)
	@DOCKER_HOST=$$(bash tests/containers/engine.sh start) && export DOCKER_HOST && \
	  $(BIN)/python -m pytest -m containers --durations 15 tests/containers $(PYTEST_ARGS)

test-operations: $(READY) ## docs/operations.md, each command as printed, in an empty Debian that boots in a container (as root)
	@DOCKER_HOST=$$(bash tests/containers/engine.sh start) && export DOCKER_HOST && \
	  $(BIN)/python -m pytest -m containers tests/containers/operations.py $(PYTEST_ARGS)

house: $(READY) ## count what makes the house hard to hold in the head, beside the goals
	@$(BIN)/python -m tools.house

generate: $(READY) ## write what follows from the schemas: keys of APIs, types of messages, the table in docs/apis.md; and the picture of the rooms
	@$(BIN)/python -m tools.generate

alerts: $(READY) ## each alert, fired by a real fault on a real fleet (PROMETHEUS=path, FAULTS="slow_fsync", MINUTE=2)
	@$(BIN)/python -m tests.deploy.alerts $(if $(PROMETHEUS),--prometheus $(PROMETHEUS)) --minute $(or $(MINUTE),1) $(FAULTS)

wheels: $(READY) ## wheels in dist/ for each supported Python that is here (PYTHONS="python3.12 python3.13")
	@bash deploy/wheels.sh $(PYTHONS)

lint: $(READY) ## ruff, mypy strict, import contracts, Cython lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@PYTHONPATH=. $(BIN)/lint-imports
	@PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint --max-line-length 120 _native

chaos: $(READY) ## chaos on real processes, as root (make chaos MINUTES=10 SEED=1)
	@$(BIN)/python -m tests.chaos.run --minutes $(MINUTES) --seed $(SEED)

spark-chaos: $(READY) ## all failure scenarios of the Spark sink and their negative controls (REPEAT=20 TOGETHER=5; resumes after a stop)
	@$(BIN)/python -m tests.spark.matrix --repeat $(REPEAT) --together $(or $(TOGETHER),1) --directory $(or $(DIRECTORY),build/spark-chaos)

spark-chaos-sample: $(READY) ## a sample of these scenarios, drawn by the commit (SAMPLE_SEED=text; begins none after 4 minutes)
	@$(BIN)/python -m tests.spark.matrix --sample 8 --seed $(SAMPLE_SEED) --minutes 4 --directory build/spark-chaos-$(SAMPLE_SEED)

spark-versions: $(READY) ## every PySpark that is supported, each in an environment of its own (VERSIONS="4.0 3.5")
	@$(BIN)/python -m tests.spark.versions $(or $(VERSIONS),--all)

perf: $(READY) ## a short pass of all suites but Spark's: kernels, the C program, Apache Kafka, scale (under 30 minutes)
	@$(BIN)/python -m perf all --short

format: $(READY) ## format and sort imports with ruff
	@$(BIN)/ruff check --fix -q . || true
	@$(BIN)/ruff format -q .

setup: $(READY) ## only create the local virtual environment

clean: ## remove the virtual environment and build results
	rm -rf $(VENV) build dist *.egg-info _native/*.so _native/*.c

$(READY): pyproject.toml setup.py $(NATIVE_SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fleetlog needs Python 3.11 or newer, this is %s: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	@echo "== setting up $(VENV) (once; takes a few minutes, mostly for pyspark's archive of 456 MB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt install python3-venv python3-dev"; rm -rf $(VENV); exit 1; }
	@$(BIN)/python -m pip install --disable-pip-version-check -q --upgrade pip
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.[dev]'
	@$(BIN)/python -c 'import fleetlog.brokers, fleetlog._native.batch, pyspark' || { echo "the installation is incomplete: see the messages above"; exit 1; }
	@touch $@
