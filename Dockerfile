# Plait on the CPU. For a small image give the index with PyTorch's CPU builds (docs/deployment.md):
#   docker build --build-arg PIP_EXTRA_ARGS="--extra-index-url URL" --tag plait:0.1.0 .
FROM python:3.11-slim-bookworm AS build
ARG PIP_EXTRA_ARGS=""
WORKDIR /src
RUN python -m venv /opt/plait
COPY constraints.txt ./
RUN /opt/plait/bin/pip install --no-cache-dir --constraint constraints.txt ${PIP_EXTRA_ARGS} torch
COPY pyproject.toml README.md LICENSE ./
COPY kernels kernels
COPY engine engine
COPY server server
RUN /opt/plait/bin/pip install --no-cache-dir --constraint constraints.txt ${PIP_EXTRA_ARGS} .

FROM python:3.11-slim-bookworm
# The CPU kernels are compiled at the first start, into ~/.cache: mount a volume there to keep them.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 plait \
    && install --directory --owner plait --group plait /home/plait/.cache
COPY --from=build /opt/plait /opt/plait
ENV PATH=/opt/plait/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/plait
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["plait"]
CMD ["serve", "--host", "0.0.0.0"]
