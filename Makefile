# The front door. Everything here is a short name for a script; CMake builds.

DEMO ?=
FUZZ_SECONDS ?= 60
STAGES ?=
MUTANTS ?=

export FUZZ_SECONDS

.DEFAULT_GOAL := help
.PHONY: help run build test lint format bench fuzz mutants clean

help:
	@echo 'make run       build, then many requests over little memory (DEMO="--drafter ngram ...")'
	@echo 'make build     build/release: the program, the libraries and their tests'
	@echo 'make test      the gate, as in CI (STAGES="tidy dev" for some, KEEP_GOING=1 for all)'
	@echo 'make lint      formatting and tools/tidy.py'
	@echo 'make format    rewrite the C++ files as clang-format wants them'
	@echo 'make bench     benchmarks at full size'
	@echo 'make fuzz      each fuzzer for FUZZ_SECONDS=60'
	@echo 'make mutants   does the test suite notice planted faults? (MUTANTS="--only NAME")'
	@echo 'make clean     remove build/'

run:
	@scripts/setup.sh build
	@scripts/build.sh release slackwater
	@build/release/slackwater demo $(DEMO)

build:
	@scripts/setup.sh build
	@scripts/build.sh release

test:
	@scripts/setup.sh test
	@scripts/gate.sh $(STAGES)

lint:
	@scripts/setup.sh test
	@KEEP_GOING=1 scripts/gate.sh format tidy

format:
	@scripts/setup.sh test
	@scripts/format.sh

bench:
	@scripts/setup.sh test
	@scripts/bench.sh

fuzz:
	@scripts/setup.sh test
	@scripts/fuzz.sh

mutants:
	@scripts/setup.sh test
	@python3 tools/mutants.py $(MUTANTS)

clean:
	@rm -rf build
