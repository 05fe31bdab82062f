import { Type } from 'typebox';
import { login } from '../../auth/login.ts';
import { PASSWORD_MAX_LENGTH } from '../../auth/passwords.ts';
import { deleteSession } from '../../auth/store.ts';
import { rfc3339 } from '../../lib/clock.ts';
import { principalOf } from '../access.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { closed, Email, EmptyBody, errors, NoContent, Time } from '../schemas.ts';
import { User, userView } from './me.ts';

const LoginRequest = closed({
  email: Email,
  password: Type.String({ minLength: 1, maxLength: PASSWORD_MAX_LENGTH }),
});
const LoginResponse = closed({ user: User, session_token: Type.String(), expires_at: Time });

export function registerAuth(app: App, { db }: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/auth/login',
    config: { access: 'public' },
    schema: {
      operationId: 'login',
      summary: 'Open a session',
      tags: ['Accounts'],
      security: [],
      body: LoginRequest,
      response: {
        200: LoginResponse,
        ...errors('INVALID_REQUEST', 'UNAUTHENTICATED', 'UNAVAILABLE', 'INTERNAL'),
      },
    },
    handler: async (request, reply) => {
      const opened = await login(db, {
        ...request.body,
        ip: request.ip,
        user_agent: (request.headers['user-agent'] ?? '').slice(0, 255),
      });
      reply.header('cache-control', 'no-store');
      return {
        user: userView(opened.user),
        session_token: opened.session_token,
        expires_at: rfc3339(opened.expires_at),
      };
    },
  });
  app.route({
    method: 'POST',
    url: '/v1/auth/logout',
    config: { access: 'session' },
    schema: {
      operationId: 'logout',
      summary: 'End this session',
      tags: ['Accounts'],
      body: EmptyBody,
      response: {
        204: NoContent,
        ...errors('INVALID_REQUEST', 'UNAUTHENTICATED', 'FORBIDDEN', 'UNAVAILABLE', 'INTERNAL'),
      },
    },
    handler: async (request, reply) => {
      const { credential } = principalOf(request);
      if (credential.kind === 'session') await deleteSession(db, credential.id);
      return reply.status(204).send(null);
    },
  });
}
