# Braid. `make help` lists what there is.

SHELL := /bin/bash
STEP  := infra/dev/step.sh
WEB   := services/dashboard/web
ARGS  ?=
CACHE := $(or $(BRAID_CACHE),$(HOME)/.cache/braid)

# What need.sh installed comes first.
export PATH := $(CACHE)/node/bin:$(CACHE)/buf/node_modules/.bin:$(CACHE)/cargo-tools/bin:$(CACHE)/go-tools/bin:$(CACHE)/go/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help run build test lint fmt proto reference deny unit web web-check page chaos bench lab lab-report lab-quick lab-kernel dashboards images e2e-compose e2e-cluster capacity compose chart chart-files load clean docs

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

run: ## the whole platform on this machine, with simulated patients; prints the address (ARGS="--patients 5")
	@infra/dev/need.sh cc
	cargo build -p braid
	@exec target/debug/braid up $(ARGS)

build: ## everything
	@infra/dev/need.sh cc
	cargo build --workspace --all-targets

test: ## everything that CI checks; installs what it needs
	@rm -f target/steps.txt
	@infra/dev/need.sh room cc ip programs node chromium cargo-deny buf envoy kafka timescaledb curl peers
	@$(STEP) format   cargo fmt --all --check
	@$(STEP) contracts $(MAKE) --no-print-directory proto
	@$(STEP) lint     $(MAKE) --no-print-directory lint
	@$(STEP) licences $(MAKE) --no-print-directory deny
	@$(STEP) unit     $(MAKE) --no-print-directory unit
	@$(STEP) chaos    $(MAKE) --no-print-directory chaos SEED=22 MINUTES=3
	@$(STEP) web      $(MAKE) --no-print-directory web-check
	@$(STEP) page     $(MAKE) --no-print-directory page
	@$(STEP) dashboards $(MAKE) --no-print-directory dashboards
	@$(STEP) charts   $(MAKE) --no-print-directory chart
	@$(STEP) compose  $(MAKE) --no-print-directory compose
	@echo; cat target/steps.txt

fmt: ## formats the code
	cargo fmt --all

lint: ## clippy, warnings refused
	@infra/dev/need.sh cc
	cargo clippy --workspace --all-targets --quiet -- -D warnings

proto: ## lints the contracts by buf's rules, and compares them with those of every release
	@infra/dev/need.sh buf
	cd proto && buf lint
	proto/breaking.sh

reference: ## writes docs/reference from the command line and the sources
	BRAID_WRITE_REFERENCE=1 cargo test -p braid --bin braid reference

docs: ## the documents as a searchable site in target/docs/book
	@infra/dev/need.sh mdbook
	@docs/site.py assemble target/docs
	mdbook build target/docs

deny: ## licences, banned and unknown sources of dependencies
	@infra/dev/need.sh cargo-deny
	cargo deny --log-level error check licenses bans sources

unit: export BRAID_TEST_ENGINES ?= required
unit: ## every Rust test; those on real engines install what they need
	@infra/dev/need.sh cc ip programs envoy kafka timescaledb curl peers
	@infra/dev/unit.sh

$(WEB)/node_modules/.package-lock.json: $(WEB)/package-lock.json
	@infra/dev/need.sh node
	cd $(WEB) && npm ci --no-fund --no-audit --silent

load: ## k6 against a `braid up` of its own: scenario=smoke, steady, surge, path-loss, storm, soak (TARGET=compose: the running compose, also upload)
	@infra/dev/need.sh cc k6
	cargo build -p braid
	@loadtest/k6/run.sh $(or $(scenario),smoke)

chart: ## the Helm charts: lint, what they render and refuse, Kubernetes' schemas
	@infra/dev/need.sh yaml helm kubeconform
	@charts/test.py --schemas "$$(infra/airgap/k8s-schemas.sh)"

chart-files: ## the charts' copies of files in infra/
	@charts/test.py --copy

web: $(WEB)/node_modules/.package-lock.json ## builds the web page into the folder that the binary embeds
	@infra/dev/need.sh buf
	cd $(WEB) && npm run --silent build

web-check: $(WEB)/node_modules/.package-lock.json ## the committed page is the one its sources build
	@infra/dev/need.sh buf
	cd $(WEB) && npm run --silent check:fresh

page: $(WEB)/node_modules/.package-lock.json ## the browser tests: values move, a path is cut, an alert is acknowledged, nobody is wrongly reassured
	@infra/dev/need.sh cc chromium buf
	cargo build --workspace --bins
	cargo build -p dashboard --example fake_ward
	cd $(WEB) && npm run --silent gen && BRAID_BIN=$(CURDIR)/target/debug/braid BRAID_FAKE_WARD=$(CURDIR)/target/debug/examples/fake_ward npm test --silent

chaos: ## separate processes on a real Kafka and TimescaleDB while faults overlap: nothing lost, every due alert raised once (SEED=7 MINUTES=20 ARGS=--json)
	@infra/dev/need.sh cc kafka timescaledb
	cargo build --workspace --bins
	$${CARGO_TARGET_DIR:-target}/debug/chaos --seed $(or $(SEED),22) --minutes $(or $(MINUTES),3) $(ARGS)

bench: ## figures on this machine beside their targets; also target/bench.json
	@infra/dev/need.sh cc kafka timescaledb
	cargo run --release -p braid -- bench $(ARGS)

capacity: ## how many gateways a core carries, part by part: a fleet of people who move (ARGS="--gateways 300 --seconds 30")
	@infra/dev/need.sh cc kafka timescaledb
	cargo run --release -p braid -- bench --only fleet $(ARGS)

lab: ## figures in virtual time beside the papers' and our targets
	@infra/dev/need.sh cc
	cargo run --release -p braid -- lab targets $(ARGS)

lab-report: ## the whole report of the five papers as HTML, hours; goes on where it stopped (ARGS="--traces DIR")
	@infra/dev/need.sh cc
	cargo run --release -p lab --example lab -- all $(ARGS)

lab-quick: ## the same report with few runs of each experiment, under three minutes after the build
	@infra/dev/need.sh cc
	cargo run --release -p lab --example lab -- all --quick $(ARGS)

lab-kernel: ## the same in kernel time: namespaces, TUN, TCP and MPTCP beside ours (needs root; ARGS="--only kernel.product")
	@infra/dev/need.sh cc ip
	cargo run --release -p braid -- lab kernel $(ARGS)

dashboards: ## dashboards by Grafana's own schema, rules of Prometheus by their tests
	@infra/dev/need.sh go promtool
	cd infra/grafana/check && go run . ../dashboards/*.json
	$(CACHE)/promtool check rules infra/prometheus/rules.yml
	$(CACHE)/promtool check config --syntax-only infra/prometheus/prometheus.yml
	$(CACHE)/promtool test rules infra/prometheus/rules_test.yml

images: ## every image of docker-compose.yml, without a container registry (compiles the release binary)
	@infra/dev/need.sh cc docker kafka timescaledb envoy
	cargo build --release -p braid
	infra/e2e/engine.sh infra/airgap/images.sh

e2e-compose: ## docker-compose.yml on a real engine: up, samples, networks cut, read back, down and up (after `make images`; root)
	@infra/dev/need.sh docker
	@infra/e2e/compose_test.py
	infra/e2e/engine.sh infra/e2e/compose.py $(ARGS)

e2e-cluster: ## the charts on a real one-node Kubernetes: install, helm test, network policies, enrolment, sign-in elsewhere, restarts under load, upgrade, rollback (after `make images`; root)
	@infra/dev/need.sh docker helm
	@infra/airgap/cluster/build.sh
	BRAID_BINARY=$${BRAID_BINARY:-$${CARGO_TARGET_DIR:-target}/release/braid} infra/e2e/engine.sh infra/e2e/cluster.py $(ARGS)

# The same as e2e-compose within `make test`, around the debug binary that is there already.
compose:
	@infra/dev/need.sh cc docker kafka timescaledb envoy
	cargo build -p braid
	@infra/e2e/compose_test.py
	BRAID_BINARY=$${CARGO_TARGET_DIR:-target}/debug/braid infra/e2e/engine.sh --or-skip sh -c 'infra/airgap/images.sh && infra/e2e/compose.py'

clean: ## removes what was built
	cargo clean
	rm -rf $(WEB)/node_modules
