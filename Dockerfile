# One image for all components; the first argument selects one: controllers, scheduler, admission, api, …
#   docker build -t batholith:0.1.0 .
# The base image is a tag, which its publisher moves to newer builds. To pin one, look up its digest:
#   docker buildx imagetools inspect python:3.11-slim-bookworm
#   docker build --build-arg BASE=python:3.11-slim-bookworm@sha256:DIGEST -t batholith:0.1.0 .

ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# All packages, those of the build among them, are installed by the hashes of their files.
COPY requirements.txt requirements-build.txt ./
RUN pip install --require-hashes --no-deps -r requirements-build.txt
RUN python -m venv --without-pip /opt/batholith \
    && pip --python /opt/batholith/bin/python install --require-hashes --no-deps -r requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY platform ./platform
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && pip --python /opt/batholith/bin/python install --no-deps --no-index /wheels/*.whl \
    && pip --python /opt/batholith/bin/python check

FROM ${BASE}
LABEL org.opencontainers.image.title="Batholith" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/batholith /opt/batholith
# Compiled during installation; at run time the file system is read-only.
ENV PATH=/opt/batholith/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /
USER 65532:65532
ENTRYPOINT ["batholith"]
