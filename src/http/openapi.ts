import type { FastifyDynamicSwaggerOptions } from '@fastify/swagger';

export const API_VERSION = '0.1.0';

/** The document's head; paths and schemas come from the routes. */
export const OPENAPI: NonNullable<FastifyDynamicSwaggerOptions['openapi']> = {
  openapi: '3.1.0',
  info: {
    title: 'Berth',
    version: API_VERSION,
    description: 'Durable instances and the virtual machines that come and go behind them.',
    license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
  },
  servers: [{ url: '/' }],
  components: {
    securitySchemes: {
      bearer: { type: 'http', scheme: 'bearer', description: 'A session token or an API key.' },
    },
  },
  security: [{ bearer: [] }],
};
