# midstream on a CPU, as a user without rights:
#   docker build --tag midstream .
#   docker run --rm --volume "$PWD:/work" midstream demo
#   docker run --rm --volume "$PWD:/work" --publish 8000:8000 midstream view --host 0.0.0.0 --port 8000
#
# The sandbox for code that a model writes: where the container may not make user namespaces, which is Docker's default,
# bubblewrap cannot start; `midstream doctor` in the container says which tier works. For the strong tier:
#   docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined ...
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/midstream
COPY pyproject.toml README.md LICENSE ./
COPY recipes recipes
COPY src src
COPY plugins plugins
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '.[train,tools,serve]' ./plugins/midstream-mcp ./plugins/midstream-web ./plugins/midstream-worlds
RUN useradd --create-home --uid 1000 midstream && mkdir /work && chown midstream /work
USER midstream
WORKDIR /work
ENTRYPOINT ["midstream"]
CMD ["--help"]
