# docker build -t impala . && docker run --rm -it -v "$PWD/runs:/impala/runs" impala train pong
FROM --platform=linux/amd64 python:3.10-slim
# KubeRay asks whether Ray is well through `wget`; `ray up` copies files through rsync.
RUN apt-get update && apt-get install -y --no-install-recommends make openssh-client rsync wget && rm -rf /var/lib/apt/lists/*
WORKDIR /impala
# The packages first: this layer is rebuilt only when one of these changes, not with every edit of the code.
COPY pyproject.toml constraints.txt LICENSE Makefile ./
COPY scripts scripts
RUN mkdir impala && touch impala/__init__.py README.md && make venv
# Such as gpu, for CUDA: docker build --build-arg EXTRAS=gpu -t impala .
ARG EXTRAS=""
RUN [ -z "$EXTRAS" ] || .venv/bin/python -m pip install --no-cache-dir --quiet -c constraints.txt -e ".[$EXTRAS]"
COPY . .
RUN make venv
# KubeRay starts `ray` in it, by name.
ENV PATH="/impala/.venv/bin:$PATH"
ENTRYPOINT ["/impala/.venv/bin/impala"]
CMD ["--help"]
