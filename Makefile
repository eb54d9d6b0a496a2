# Every target sets up what it needs: python3 with venv, and make, are enough to begin with.
VENV := .venv
BIN := $(VENV)/bin
SERVERS := .venv-servers
READY := $(VENV)/.ready
SERVERS_READY := $(SERVERS)/.ready
WORKERS ?= 2

.PHONY: demo test check servers test-ceph test-endpoint bench clean

$(READY): requirements-dev.txt pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(SERVERS_READY): localstack/requirements.txt
	python3 -m venv $(SERVERS)
	$(SERVERS)/bin/pip install --quiet --disable-pip-version-check -r localstack/requirements.txt
	touch $@

demo: $(READY)  ## train, kill, lose a domain, resume bit for bit
	$(BIN)/objckpt demo

test: $(READY) $(SERVERS_READY)  ## every test, against real servers on this machine
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not ceph and not endpoint"

check: $(READY)  ## formatting, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

servers: $(READY) $(SERVERS_READY)  ## start the test servers and keep them in the foreground
	$(SERVERS)/bin/python localstack/servers.py start localstack seaweedfs gcs

test-ceph: $(READY) $(SERVERS_READY)  ## the S3 contract against Ceph RGW, which apt installs
	$(BIN)/pytest -m ceph

test-endpoint: $(READY)  ## the S3 contract against your endpoint: S3_ENDPOINT, S3_BUCKET, AWS_*
	$(BIN)/pytest -m endpoint

bench: $(READY)  ## the benchmarks, as ratios on this machine
	$(BIN)/python benchmarks/coding.py
	$(BIN)/python benchmarks/client.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/partial.py

clean:
	rm -rf $(VENV) $(SERVERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
