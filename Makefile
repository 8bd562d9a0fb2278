# `make` alone prints this list. Everything runs from uv.lock in environments below this folder; nothing is installed
# into the system. PYTHON names the Python to use (3.11 to 3.13), UPDRAFT_HOME the folder of the platform's state.

PYTHON ?= python3
ARGS ?=
BOOTSTRAP = $(PYTHON) scripts/bootstrap.py
RUN = @$(BOOTSTRAP) run -- python -m updraft.stack
DEV = @$(BOOTSTRAP) --dev run --

.DEFAULT_GOAL := help
.PHONY: help demo up down status doctor story test pictures test-story test-pages test-public test-large test-frameworks lint types contracts check check-rclone check-all bench faults faults-ci faults-cluster \
	cluster cluster-down test-cluster images images-record images-down test-containers test-compose-cluster reference clean format

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## From a manifest to a registered model: installs, starts everything, trains, says where to look
	@$(BOOTSTRAP) --announce run -- python -m updraft.stack demo

up: ## Start the platform on this machine, or take over what still runs
	$(RUN) up $(ARGS)

down: ## End every process of the platform, whatever state it is in
	@$(BOOTSTRAP) stop
	@if .venv/bin/python -c 'import updraft.stack.control' 2>/dev/null \
	|| ls "$${UPDRAFT_HOME:-.updraft}"/run/*.json >/dev/null 2>&1; \
	then .venv/bin/python -m updraft.stack down; \
	else echo "Nothing was installed, so nothing is running."; fi

status: ## Show what runs, its memory and CPU, and where it listens
	@$(BOOTSTRAP) run -- python -m updraft.stack status || true

doctor: ## Look for what is wrong with this machine or the platform's state
	$(RUN) doctor

story: ## Play the life of a series on the platform that is up: data arrives, models come and go (takes ten minutes)
	$(DEV) python scripts/story

test: ## Run all tests (ARGS="-k name" chooses)
	@$(BOOTSTRAP) --dev run -- python -m updraft.stack prepare
	$(DEV) python scripts/tests.py $(ARGS)

pictures: ## Take the pictures of README and of the tour anew, from one run on the platform that is up (needs Chromium)
	@$(BOOTSTRAP) --dev run -- python -c 'import os; os.execl(os.environ["UPDRAFT_UV"], "uv", "run", "--frozen", \
		"--with", "pyte", "python", "scripts/pictures", *"$(ARGS)".split())'

reference: ## Write the pages of docs/reference that are made from the source
	$(DEV) python scripts/docs/reference

test-pages: ## Type the commands of README and of the how-to pages on a fresh clone
	@$(BOOTSTRAP) --dev run -- python -m updraft.stack prepare
	$(DEV) pytest -v --no-header -m pages $(ARGS) tests/system/test_pages.py

test-story: ## Play `make story` on a stack of its own (needs Chromium for the approval in a browser) and again while parts are killed; then thirty jobs of three tenants while parts are killed
	@$(BOOTSTRAP) --dev run -- python -m updraft.stack prepare
	$(DEV) pytest -v --no-header -m story $(ARGS) tests/system/test_story.py tests/system/test_shared_cluster.py

test-public: ## Train programs of public repositories, fetched from GitHub (takes 20 minutes)
	@$(BOOTSTRAP) --dev run -- python -m updraft.stack prepare
	$(DEV) pytest -v --no-header -m public $(ARGS) tests/system/test_public_programs.py tests/system/test_deepspeed.py tests/system/test_horovod.py

test-large: ## Store and restore a checkpoint of 3 GB (needs 12 GB of disk); disturb a job 50 times that is resized in place; kill processes of shared-memory training 2,000 times
	@$(BOOTSTRAP) --dev run -- python -m updraft.stack prepare
	$(DEV) pytest -v --no-header -m large $(ARGS) tests/system/test_large_checkpoint.py tests/system/test_in_place.py
	@$${UPDRAFT_HOME:-.updraft}/envs/torch-tests/bin/python -m pytest -v -m "torch and large" -p no:cacheprovider tests/learner

test-frameworks: ## Test the adapters, each with its library (ARGS="xgboost jax" chooses; all take some GB of packages)
	$(DEV) python scripts/framework_tests.py $(ARGS)

lint: ## Check style and formatting
	$(DEV) ruff check .
	$(DEV) ruff format --check .

format: ## Repair style and formatting
	$(DEV) ruff check --fix .
	$(DEV) ruff format .

types: ## Check types, strictly
	$(DEV) mypy

contracts: ## Check which package may import which
	$(DEV) lint-imports

check-rclone: ## Compare the rclone that is installed with its public sources and its release (ARGS=--require: fail if both skip)
	$(DEV) python scripts/check_rclone.py $(ARGS)

check: lint types contracts test ## All checks and tests

check-all: lint types contracts check-rclone test test-frameworks faults-ci test-containers test-cluster test-pages test-compose-cluster test-story test-public test-large ## Everything; CI runs five of these in turn

bench: ## Measure every published figure (takes long; wants a quiet machine)
	$(DEV) python -m updraft.stack prepare
	$(DEV) python bench $(ARGS)

faults: ## Break a platform in every way and prove what holds (PACKED=1 RUNS=n COVER=n SEED=s KINDS=a,b+c MINUTES=m)
	$(DEV) python -m updraft.stack prepare
	$(DEV) python bench/faults $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS)) \
		$(if $(SCALE),--scale $(SCALE)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(AGAIN),--again) \
		$(if $(PAIRED),--in-pairs) $(if $(PACKED),--packed) $(if $(LAB),--home $(LAB)) $(if $(COVER),--cover $(COVER)) \
		$(if $(AIM),--aim $(AIM)) $(if $(PROGRAM),--program $(PROGRAM)) $(ARGS)

faults-ci: ## A short selection of faults, drawn by the number of commits: small jobs and whole life cycles in turn
	$(DEV) python -m updraft.stack prepare
	$(DEV) python bench/faults --selection --minutes 2.3 --scale 0.4 --again \
		--seed $(or $(SEED),$$(git rev-list --count HEAD)) --results $${UPDRAFT_HOME:-.updraft}/faults-ci.jsonl $(ARGS)

faults-cluster: ## Break that Kubernetes below real jobs, and put what became of them into the report of `make faults`
	@$(BOOTSTRAP) --dev run -- python tests/cluster test -m fault --record-faults bench/results/faults_cluster.jsonl $(ARGS); \
	code=$$?; $(BOOTSTRAP) --dev run -- python bench/faults --report; exit $$code

cluster: ## Start a real Kubernetes on this machine for tests (needs root, Go, and Debian or Ubuntu)
	$(DEV) python tests/cluster up

cluster-down: ## End that Kubernetes and leave nothing of it
	$(DEV) python tests/cluster down

test-cluster: ## Run tests and real jobs on that Kubernetes, or in namespaces of the one that UPDRAFT_TEST_KUBECONFIG names
	$(DEV) python tests/cluster test $(ARGS)

images: ## Build the container images (ARGS="sidecar learner-sklearn" chooses, --archives FOLDER saves them)
	$(PYTHON) tests/containers images $(ARGS)

images-record: ## Build the images and keep their sizes and build times for the documentation
	$(PYTHON) tests/containers images --record $(ARGS)

images-down: ## End the container engine that was started for tests, with everything that it made
	@$(PYTHON) tests/containers down

test-containers: ## Build, start and try every image and docker-compose.yaml (needs root on Debian or Ubuntu, or Docker)
	$(DEV) pytest -v --no-header -m "containers and not cluster" tests/containers $(ARGS)

test-compose-cluster: ## Train from docker-compose.yaml on a real Kubernetes outside of it (needs what both of them need)
	$(DEV) pytest -v --no-header -m "containers and cluster" tests/containers $(ARGS)

clean: ## Stop everything and remove environments, jobs, models and data; asks first (YES=1 does not)
	@if [ -d .updraft/compose ]; then echo "error: .updraft/compose has the secrets that the data of docker compose needs;" \
	"end that with \`docker compose down --volumes\`, then remove the folder" >&2; exit 1; fi
	@YES=$(YES) $(PYTHON) scripts/clean.py ask
	@$(MAKE) --no-print-directory down
	@if [ -d .updraft/cluster ] || [ -d .updraft/cluster-beside ]; then $(MAKE) --no-print-directory cluster-down; fi
	@$(PYTHON) scripts/clean.py remove
