# midstream on a CPU, as a user without rights, here you, to whom the files in runs/ then belong:
#   docker build --tag midstream .
#   docker run --rm --user "$(id -u)" --volume "$PWD:/work" midstream demo
#   docker run --rm --user "$(id -u)" --volume "$PWD:/work" --publish 127.0.0.1:8000:8000 midstream view --host 0.0.0.0 --port 8000
# A key of a provider: --env OPENAI_API_KEY. The viewer prints its address with a token: open it with localhost in place of 0.0.0.0.
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
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '.[train,tools,serve]' ./plugins/midstream-ci ./plugins/midstream-mcp ./plugins/midstream-web ./plugins/midstream-worlds './plugins/midstream-extra[otel]'
# Whoever --user names has no entry in /etc/passwd: PyTorch asks for a name, caches for a home.
ENV HOME=/tmp USER=midstream
RUN mkdir /work && chown 1000 /work
USER 1000
WORKDIR /work
ENTRYPOINT ["midstream"]
CMD ["--help"]
