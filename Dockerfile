# TensorOpt on CPUs:
#   docker build -t tensoropt . && docker run --rm -v "$PWD:/work" tensoropt run -n 2 train.py
# tests/dockerfile.sh runs these steps where there is no Docker.
FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
COPY . /opt/tensoropt
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir "/opt/tensoropt[cpu]"
ENV PATH=/opt/venv/bin:$PATH
RUN useradd --create-home train
USER train
WORKDIR /work
ENTRYPOINT ["tensoropt"]
CMD ["doctor"]
