# The worker, from a checkout. The packages are those of uv.lock, hashes checked.

FROM python:3.11-slim AS packages
ENV PIP_NO_CACHE_DIR=1 \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_NO_CACHE=1 \
    UV_PYTHON_DOWNLOADS=never
WORKDIR /app
COPY pyproject.toml uv.lock requirements.lock ./
RUN sed -n '/^uv==/,/[^\\]$/p' requirements.lock > uv.lock.txt \
    && pip install --require-hashes --requirement uv.lock.txt
RUN uv sync --frozen --no-dev --no-install-project --extra media --extra objects

FROM python:3.11-slim
ENV PATH=/app/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# The folder is owned by the worker's user before a volume is mounted on it: a new named
# volume takes over its owner.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin turnkeeper \
    && install --directory --owner turnkeeper /var/lib/turnkeeper/artifacts
WORKDIR /app
COPY --from=packages /app/.venv .venv
COPY turnkeeper turnkeeper
COPY workflows workflows
COPY activities activities
COPY examples examples
COPY worker.py starter.py ./
COPY scripts/worker_polls.py scripts/
# Started here once, so that the first task does not wait for bytecode.
RUN python -m compileall -q turnkeeper workflows activities examples worker.py starter.py
USER turnkeeper
HEALTHCHECK --interval=30s --timeout=15s --start-period=30s --retries=3 \
    CMD ["python", "scripts/worker_polls.py"]
STOPSIGNAL SIGTERM
CMD ["python", "worker.py"]
