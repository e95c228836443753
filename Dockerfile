# One image for `firsttoken up`: locked packages with hashes, no compiler, no root, no embedded Postgres needed.
FROM python:3.12-slim-bookworm
WORKDIR /opt/firsttoken
COPY locks/demo.txt locks/demo.txt
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r locks/demo.txt
COPY pyproject.toml README.md LICENSE ./
COPY migrations migrations
COPY dashboards/generated dashboards/generated
COPY monitor monitor
RUN pip install --no-cache-dir --no-deps --no-build-isolation --no-index . \
 && useradd --system --uid 10001 --home-dir /var/lib/firsttoken --create-home firsttoken
USER firsttoken
ENV STATE_DIRECTORY=/var/lib/firsttoken
VOLUME /var/lib/firsttoken
EXPOSE 8765
ENTRYPOINT ["firsttoken"]
CMD ["up", "/etc/firsttoken/firsttoken.yaml"]
