# Braid. `make help` lists the targets.

SHELL := /bin/bash
STEP  := infra/dev/step.sh
BESIDE := infra/dev/beside.sh
WEB   := services/dashboard/web
ARGS  ?=
CACHE := $(or $(BRAID_CACHE),$(HOME)/.cache/braid)

# Within `make test` the programs have the features of the tests, which are built already. So no
# crate is compiled twice.
BUILD_TESTS = cargo build --workspace --bins --examples --tests
AS_TESTS = BUILD="$(BUILD_TESTS)"

# The list lets the tests run while clippy holds cargo's lock.
PROGRAMS = $(CURDIR)/target/steps/programs.json

# They are fetched while cargo compiles.
TOOLS = infra/dev/need.sh ip python programs sctp node chromium cargo-deny buf envoy kafka \
	timescaledb curl peers hapi go promtool yaml helm kubeconform docker

# The images of compose that hold nothing of Braid wait for disks, and need no compiled program.
IMAGES_OF_OTHERS = infra/e2e/engine.sh --or-skip infra/airgap/images.sh netlab kafka timescaledb envoy prometheus

# A step that measures nothing takes the time that the steps beside it leave.
IDLE = chrt --idle 0

# The seed of the faults in `make test` follows from the commit, so each commit plays other faults.
# `make chaos SEED=...` replays one. Without git it is 0.
TEST_SEED = $(shell printf %d 0x$$(git rev-parse --short=7 HEAD 2>/dev/null) 2>/dev/null)

# Tools that need.sh installed come first.
export PATH := $(CACHE)/node/bin:$(CACHE)/buf/node_modules/.bin:$(CACHE)/cargo-tools/bin:$(CACHE)/go-tools/bin:$(CACHE)/go/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help run build test lint fmt proto reference deny unit web web-check page chaos bench lab lab-targets lab-quick lab-kernel dashboards images e2e-compose e2e-cluster e2e-upgrade capacity compose chart chart-files load clean docs

help: ## prints this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

# The command prints the address of the page.
run: ## runs the whole platform here, with simulated patients (ARGS="--patients 5")
	@infra/dev/need.sh cc
	cargo build -p braid
	@exec target/debug/braid up $(ARGS)

build: ## compiles everything
	@infra/dev/need.sh cc
	cargo build --workspace --all-targets

test: ## runs all checks of CI, and installs the programs that they need
	@rm -rf target/steps.txt target/steps
	@infra/dev/need.sh room cc
	@$(STEP) format   cargo fmt --all --check
	@$(BESIDE) tools '$(TOOLS) && $(IMAGES_OF_OTHERS)' build '$(BUILD_TESTS) && infra/dev/unit.py --list > $(PROGRAMS)'
	@$(STEP) contracts $(MAKE) --no-print-directory proto
	@$(STEP) licences $(MAKE) --no-print-directory deny
	@$(BESIDE) lint '$(IDLE) $(MAKE) --no-print-directory lint' unit 'BRAID_EXECUTED=$(CURDIR)/target/steps/tests.txt BRAID_TEST_PROGRAMS=$(PROGRAMS) $(MAKE) --no-print-directory unit'
	@$(BESIDE) chaos '$(MAKE) --no-print-directory chaos SEED=$(TEST_SEED) MINUTES=3 $(AS_TESTS)' web '$(IDLE) $(MAKE) --no-print-directory web-check' dashboards '$(IDLE) $(MAKE) --no-print-directory dashboards'
	@$(STEP) page     $(MAKE) --no-print-directory page $(AS_TESTS)
	@$(BESIDE) compose '$(MAKE) --no-print-directory compose $(AS_TESTS)' charts '$(MAKE) --no-print-directory chart'
	@$(STEP) hazards  infra/dev/hazards.py target/steps
	@echo; cat target/steps.txt

fmt: ## formats the code
	cargo fmt --all

lint: ## runs clippy, and refuses warnings
	@infra/dev/need.sh cc
	cargo clippy --workspace --all-targets --quiet -- -D warnings

proto: ## lints the contracts by buf's rules, and compares them with those of every release
	@infra/dev/need.sh buf
	cd proto && buf lint
	proto/breaking.sh

reference: ## writes docs/reference from the command line and the sources
	BRAID_WRITE_REFERENCE=1 cargo test -p braid --bin braid reference

docs: ## builds the documents as a searchable site in target/docs/book
	@infra/dev/need.sh mdbook
	@docs/site.py assemble target/docs
	mdbook build target/docs

deny: ## checks licences, bans, sources and advisories of dependencies
	@infra/dev/need.sh cargo-deny
	cargo deny --log-level error check licenses bans sources
	@infra/dev/advisories.sh

unit: export BRAID_TEST_ENGINES ?= required
unit: ## runs every Rust test, and installs the real engines that some of them need
	@infra/dev/need.sh cc ip python programs sctp envoy kafka timescaledb curl peers hapi
	@UNSTEADY_MAX=2 infra/dev/unit.py

$(WEB)/node_modules/.package-lock.json: $(WEB)/package-lock.json
	@infra/dev/need.sh node
	cd $(WEB) && npm ci --no-fund --no-audit --silent

# Scenarios are smoke, steady, surge, path-loss, storm and soak. TARGET=compose uses the running
# compose, which also has upload.
load: ## runs k6 against a `braid up` of its own (scenario=smoke TARGET=compose)
	@infra/dev/need.sh cc k6
	cargo build -p braid
	@loadtest/k6/run.sh $(or $(scenario),smoke)

chart: ## lints the Helm charts, and checks their output, their refusals and Kubernetes' schemas
	@infra/dev/need.sh yaml helm kubeconform
	@charts/test.py --schemas "$$(infra/airgap/k8s-schemas.sh)"

chart-files: ## copies files of infra/ into the charts
	@charts/test.py --copy

web: $(WEB)/node_modules/.package-lock.json ## builds the web page that the binary embeds
	@infra/dev/need.sh buf
	cd $(WEB) && npm run --silent build

web-check: $(WEB)/node_modules/.package-lock.json ## compares the committed page with a build
	@infra/dev/need.sh buf
	cd $(WEB) && npm run --silent check:fresh

# Values move, a path is cut, an alert is acknowledged, and no state reassures people wrongly.
page: $(WEB)/node_modules/.package-lock.json ## runs the browser tests
	@infra/dev/need.sh cc chromium buf
	$(or $(BUILD),cargo build --workspace --bins && cargo build -p dashboard --example fake_ward)
	cd $(WEB) && npm run --silent gen && BRAID_BIN=$(CURDIR)/target/debug/braid BRAID_FAKE_WARD=$(CURDIR)/target/debug/examples/fake_ward npm test --silent

# Separate processes run while faults overlap. No data is lost, and every due alert is raised once,
# told, and repeated until somebody acknowledges it.
chaos: ## runs faults on a real Kafka and TimescaleDB (SEED=7 MINUTES=20 ARGS=--json)
	@infra/dev/need.sh cc kafka timescaledb
	$(or $(BUILD),cargo build --workspace --bins)
	$${CARGO_TARGET_DIR:-target}/debug/chaos --seed $(or $(SEED),22) --minutes $(or $(MINUTES),3) $(ARGS)

bench: ## compares figures of this machine with their targets, also in target/bench.json
	@infra/dev/need.sh cc kafka timescaledb
	cargo build --release -p braid -p braid-lab
	$${CARGO_TARGET_DIR:-target}/release/braid-lab bench $(ARGS)

# The fleet consists of moving people, and the result is part by part.
capacity: ## finds how many gateways a core carries (ARGS="--gateways 300 --seconds 30")
	@infra/dev/need.sh cc kafka timescaledb
	cargo build --release -p braid -p braid-lab
	$${CARGO_TARGET_DIR:-target}/release/braid-lab bench --only fleet $(ARGS)

# The report takes hours, and a new run continues where the last one stopped.
lab: ## writes the whole report of the five papers as HTML (ARGS="--traces DIR")
	@infra/dev/need.sh cc
	@[ "$$(id -u)" != 0 ] || infra/dev/need.sh ip sctp
	cargo run --release -p braid-lab -- all $(ARGS)

# After the build the report takes between two and three minutes on two idle cores.
lab-quick: ## writes the same report with few runs of each experiment
	@infra/dev/need.sh cc
	@[ "$$(id -u)" != 0 ] || infra/dev/need.sh ip sctp
	cargo run --release -p braid-lab -- all --quick $(ARGS)

lab-targets: ## compares figures in virtual time with the papers' and our targets
	@infra/dev/need.sh cc
	cargo run --release -p braid-lab -- targets $(ARGS)

# The lab uses namespaces and TUN, and compares TCP and MPTCP with Braid.
lab-kernel: ## runs the lab in kernel time, and needs root (ARGS="--only kernel.product")
	@infra/dev/need.sh cc ip
	cargo build --release -p braid -p braid-lab
	$${CARGO_TARGET_DIR:-target}/release/braid-lab kernel $(ARGS)

dashboards: ## checks dashboards by Grafana's own schema, and tests the rules of Prometheus
	@infra/dev/need.sh go promtool
	cd infra/grafana/check && go run . ../dashboards/*.json
	$(CACHE)/promtool check rules infra/prometheus/rules.yml
	$(CACHE)/promtool check config --syntax-only infra/prometheus/prometheus.yml
	$(CACHE)/promtool test rules infra/prometheus/rules_test.yml

# The target compiles the release binary.
images: ## builds every image of docker-compose.yml without a container registry
	@infra/dev/need.sh cc docker kafka timescaledb envoy
	cargo build --release -p braid
	infra/e2e/engine.sh infra/airgap/images.sh

# The test starts the services, sends samples, cuts networks, reads back, stops and starts again.
e2e-compose: ## tests docker-compose.yml on a real engine (after `make images`; needs root)
	@infra/dev/need.sh docker
	@infra/e2e/compose_test.py
	infra/e2e/engine.sh infra/e2e/compose.py $(ARGS)

# The test covers installation, helm test, network policies, enrolment and sign-in at a provider.
# It also covers restarts under load, upgrade and rollback.
e2e-cluster: ## tests the charts on a one-node Kubernetes (after `make images`; needs root)
	@infra/dev/need.sh docker helm
	@infra/airgap/cluster/build.sh
	BRAID_BINARY=$${BRAID_BINARY:-$${CARGO_TARGET_DIR:-target}/release/braid} infra/e2e/engine.sh infra/e2e/cluster.py $(ARGS)

# The release is the last tag; its program is built once, in a tree of its own.
e2e-upgrade: ## runs the last release, this program, and the release again on one data directory
	$(or $(BUILD),cargo build -p braid)
	infra/e2e/upgrade.py $(ARGS)

# The target runs e2e-compose for `make test`, with the debug binary that already exists.
compose:
	@infra/dev/need.sh cc docker kafka timescaledb envoy
	$(or $(BUILD),cargo build -p braid)
	@infra/e2e/compose_test.py
	BRAID_BINARY=$${CARGO_TARGET_DIR:-target}/debug/braid infra/e2e/engine.sh --or-skip sh -c 'infra/airgap/images.sh && infra/e2e/compose.py'

clean: ## removes build output
	cargo clean
	rm -rf $(WEB)/node_modules
