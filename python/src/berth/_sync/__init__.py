"""The blocking shape, which `berth` exports. Written from `aio` by python/generate.ts, except for the network."""
