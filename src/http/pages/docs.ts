/** `/docs`: the API document, rendered by Swagger UI from this server alone. */
import swaggerUi from '@fastify/swagger-ui';
import type { FastifyInstance } from 'fastify';

export const DOCS_PREFIX = '/docs';

/** Nothing from anywhere else is loaded or asked. */
const CONTENT_SECURITY_POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

export async function registerDocs(app: FastifyInstance): Promise<void> {
  await app.register(swaggerUi, {
    routePrefix: DOCS_PREFIX,
    staticCSP: true,
    transformStaticCSP: () => CONTENT_SECURITY_POLICY,
    uiConfig: {
      // Without the bar that asks for the address of some other document.
      layout: 'BaseLayout',
      docExpansion: 'list',
      deepLinking: true,
      tryItOutEnabled: false,
      validatorUrl: null,
    },
    theme: { title: 'Berth API' },
  });
}
