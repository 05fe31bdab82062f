import type { FastifyRequest } from 'fastify';
import type { AppContext } from './context.ts';

/** Tells the holder of an account that it has just been locked, wherever the wrong passwords were entered. */
export function lockNotice({ mailer }: Pick<AppContext, 'mailer'>, request: FastifyRequest) {
  return (email: string): void =>
    mailer.send({
      to: email,
      subject: 'Your Berth account is locked',
      text: `Five wrong passwords in a row, the last from ${request.ip}. The account is locked for a while; a password reset unlocks it.`,
    });
}
