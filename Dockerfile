# One image for all components; the first argument selects one: controllers, scheduler, admission, api, …
#   docker build -t batholith:0.1.0 .

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY platform ./platform
# Build tools are pinned, too.
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN pip wheel --no-deps --wheel-dir /wheels .
RUN python -m venv --without-pip /opt/batholith \
    && pip --python /opt/batholith/bin/python install "$(echo /wheels/*.whl)[postgres]"

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="Batholith" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/batholith /opt/batholith
# Compiled during installation; at run time the file system is read-only.
ENV PATH=/opt/batholith/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /
USER 65532:65532
ENTRYPOINT ["batholith"]
