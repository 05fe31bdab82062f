/** For the image's HEALTHCHECK: ends with 0 when the server that has this container's settings is ready. */
import { get as httpGet } from 'node:http';
import { get as httpsGet } from 'node:https';

// A host of another control plane accepts no requests, so the only question is whether it runs.
if (process.env.BERTH_CONTROL_PLANE) process.exit(0);
const { BERTH_LISTEN: listen = '127.0.0.1:7400', BERTH_TLS_CERT: certificate } = process.env;
// By its address, whose name the certificate need not carry: nothing is sent but the question.
const options = { timeout: 4_000, rejectUnauthorized: false };
const get = certificate ? httpsGet : httpGet;
const request = get(`${certificate ? 'https' : 'http'}://${listen}/readyz`, options, ({ statusCode }) =>
  process.exit(statusCode === 200 ? 0 : 1),
);
request.on('error', () => process.exit(1));
request.on('timeout', () => process.exit(1));
