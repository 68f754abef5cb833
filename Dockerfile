# paceline in a container: `docker run paceline` starts the scheduler,
# `docker run paceline dask worker tcp://HOST:8786` a stock worker, `docker run paceline python ...` anything else.
# tests/integration/test_dockerfile.py reads this file and runs its install and start commands without an engine.

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY scheduler scheduler
COPY workers_compat workers_compat
RUN python -m venv /opt/paceline
RUN /opt/paceline/bin/python -m pip install --no-cache-dir .

FROM python:3.12-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 paceline
COPY --from=build /opt/paceline /opt/paceline
ENV PATH=/opt/paceline/bin:$PATH PYTHONUNBUFFERED=1
USER paceline
WORKDIR /home/paceline
EXPOSE 8786 8787
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8787/health', timeout=2)"]
ENTRYPOINT ["tini", "-g", "--"]
CMD ["paceline"]
