# make demo   the recipe on real input, from text to a table of word error rates
# make test   the tests;  make lint   style and types;  make bench   speed
# make test-avx2   what depends on the CPU's instructions, as on a CPU without AVX-512
#
# KINDS="bayes gp variational" make demo   all three families, 17 minutes
# VENV=DIR make ...   uses the environment in DIR (made if it is not there).

VENV ?= .venv
PYTHON ?= python3
SIZE ?= small
KINDS ?= bayes

BIN := $(abspath $(VENV))/bin
# The environment is made anew only when what it must hold changes; a clone's own code is
# found through PYTHONPATH, so several clones can share one.
READY := $(VENV)/.ready-$(shell cksum < setup.cfg | cut -d' ' -f1)
export PYTHONPATH := $(CURDIR)
export PATH := $(BIN):$(PATH)

.PHONY: install demo test test-avx2 mutants lint format bench clean

install: $(READY)

$(READY): setup.cfg
	@test -x "$(BIN)/python" || $(PYTHON) -m venv "$(VENV)" || { \
	  echo "make: '$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv python3-dev g++" >&2; exit 1; }
	"$(BIN)/python" -m pip install --disable-pip-version-check -e '.[dev]'
	@rm -f "$(VENV)"/.ready-*
	@touch "$@"

demo: $(READY)
	cd egs2/sotu/lm && PYTHON="$(BIN)/python" ./run.sh --size $(SIZE) --kinds "$(KINDS)"

# Two processes of one thread each, each with half of the tests in order, for the fixtures that they
# share; who is done first takes over tests of the other.
test: $(READY)
	OMP_NUM_THREADS=1 "$(BIN)/python" -m pytest -q -n 2 --dist worksteal

# What touches matrix products, autocast and the LSTM.
AVX2_TESTS := $(addprefix tests/, kernels/test_product.py kernels/test_recurrence.py \
  kernels/test_feed_forward.py layers/test_sampled.py kernels/test_vocabulary.py lm/test_kinds.py \
  lm/test_decoding.py lm/test_tree.py training/test_nll.py training/test_model.py \
  training/test_optimizer.py training/test_sampled_softmax.py)

test-avx2: export ATEN_CPU_CAPABILITY := avx2
test-avx2: export ONEDNN_MAX_CPU_ISA := AVX2
test-avx2: $(READY)
	OMP_NUM_THREADS=1 "$(BIN)/python" -m pytest -q -n 2 --dist worksteal $(AVX2_TESTS)

# 40 changes of one operator or number each: do the tests notice? About an hour on two cores.
mutants: $(READY)
	"$(BIN)/python" tests/mutation.py --count 40

lint: $(READY)
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"

format: $(READY)
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

bench: $(READY)
	"$(BIN)/python" -u bench/steps.py
	"$(BIN)/python" -u bench/search.py
	"$(BIN)/python" -u bench/rescore.py
	"$(BIN)/python" -u bench/decode.py
	"$(BIN)/python" -u bench/train.py

clean:
	rm -rf egs2/*/*/exp egs2/*/*/data egs2/*/*/dump build dist *.egg-info
