# The image of paceline; docs/deploy/docker.md describes how to use it.
#   docker build -t paceline .
#   docker build -t paceline --build-arg EXTRAS="[dashboard,demo,jupyter]" .    with numpy, pandas, pyarrow, ... and Jupyter
# It follows the conventions of the `dask` image (prepare.sh), so that charts and scripts written for it work with this one.
# tests/integration/test_dockerfile.py runs the install and start commands of this file without a container engine.

FROM python:3.12-slim AS build
ARG EXTRAS="[dashboard]"
# setup.py compiles the core of the scheduler
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY paceline paceline
COPY protocol protocol
COPY scheduler scheduler
COPY testing testing
COPY transfer transfer
COPY workers_compat workers_compat
RUN python -m venv /opt/paceline
RUN /opt/paceline/bin/python -m pip install --no-cache-dir ".${EXTRAS}"
# with PACELINE_TAKEOVER=1, `dask scheduler` and `dask spec` start paceline
RUN /opt/paceline/bin/paceline takeover --install

FROM python:3.12-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 paceline
# owned by the user that runs the container, because EXTRA_PIP_PACKAGES are installed there
COPY --from=build --chown=paceline:paceline /opt/paceline /opt/paceline
COPY prepare.sh /usr/bin/prepare.sh
# the command that distributed 2026.6 removed and that charts still use
RUN printf '#!/bin/sh\nexec dask worker "$@"\n' > /usr/bin/dask-worker && chmod 755 /usr/bin/dask-worker /usr/bin/prepare.sh
ENV PATH=/opt/paceline/bin:$PATH PYTHONUNBUFFERED=1
USER paceline
WORKDIR /home/paceline
EXPOSE 8786 8787
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8787/health', timeout=2)"]
ENTRYPOINT ["tini", "-g", "--", "/usr/bin/prepare.sh"]
CMD ["paceline"]
