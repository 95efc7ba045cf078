# sbm, run by a user without rights:
#   docker build -t sbm .
#   docker run --rm -v "$PWD":/data sbm train big.svm
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
# The wheel has its kernels compiled, for x86-64 processors with AVX2 (hatch_build.py).
RUN python -m venv /opt/sbm \
    && /opt/sbm/bin/pip install --no-cache-dir ".[arrow,remote]" \
    && install -D scripts/nightly.sh /opt/sbm/scripts/nightly.sh \
    && install -D configs/nightly.toml /opt/sbm/configs/nightly.toml

FROM python:3.12-slim
COPY --from=build /opt/sbm /opt/sbm
RUN useradd --create-home --uid 1000 sbm
ENV PATH="/opt/sbm/bin:$PATH"
USER sbm
WORKDIR /data
ENTRYPOINT ["sbm"]
CMD ["--help"]
