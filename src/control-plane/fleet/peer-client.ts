/** Calls to another control plane's internal API: JSON over TLS, to the certificate of its row, with a token for it alone. */
import type { Duplex } from 'node:stream';
import type { TSchema } from 'typebox';
import { Agent, request, upgrade } from 'undici';
import { problemOfAnswer } from '../../protocol/check.ts';
import { CONSOLE_PROTOCOL } from '../../protocol/host-calls.ts';
import { pinnedConnector } from '../../protocol/pinned-connector.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER } from '../../protocol/protocol.ts';
import type { AgentRoute } from '../../protocol/routes.ts';
import type { Of } from '../../protocol/schemas.ts';
import { AppError } from '../../shared/errors.ts';
import type { ControlPlane } from './control-plane-store.ts';

/** Less than a call waits to be taken. */
const ANSWER_MS = 4_000;

export class PeerClient {
  readonly #url: string;
  readonly #token: string;
  readonly #agent: Agent;
  readonly #streams: Agent;

  constructor({ url, fingerprint }: ControlPlane, token: string) {
    const connect = pinnedConnector(fingerprint);
    this.#url = url;
    this.#token = token;
    this.#agent = new Agent({ connect, connections: 16 });
    // Each upgrade keeps its connection.
    this.#streams = new Agent({ connect });
  }

  /** @throws AppError UNAVAILABLE */
  async post<Request extends TSchema, Response extends TSchema>(
    { path, response: schema }: AgentRoute<Request, Response>,
    body: Of<Request>,
  ): Promise<Of<Response>> {
    try {
      const response = await request(this.#url + path, {
        method: 'POST',
        dispatcher: this.#agent,
        headers: { ...this.#headers(), 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(ANSWER_MS),
      });
      const text = await response.body.text();
      if (response.statusCode !== 200)
        throw new Error(`status ${response.statusCode}: ${text.slice(0, 300)}`);
      const answer: unknown = JSON.parse(text);
      const problem = problemOfAnswer(schema, answer);
      if (problem !== null) throw new Error(`its answer cannot be read: ${problem}`);
      return answer as Of<Response>;
    } catch (cause) {
      throw unavailable(cause);
    }
  }

  /** The caller must end it. @throws AppError UNAVAILABLE */
  async openStream(path: string): Promise<Duplex> {
    try {
      const { socket } = await upgrade(this.#url + path, {
        dispatcher: this.#streams,
        headers: this.#headers(),
        protocol: CONSOLE_PROTOCOL,
        signal: AbortSignal.timeout(ANSWER_MS),
      });
      return socket;
    } catch (cause) {
      throw unavailable(cause);
    }
  }

  async close(): Promise<void> {
    await this.#streams.destroy();
    await this.#agent.destroy();
  }

  #headers() {
    return { authorization: `Bearer ${this.#token}`, [PROTOCOL_HEADER]: String(AGENT_PROTOCOL) };
  }
}

function unavailable(cause: unknown): AppError {
  return new AppError('UNAVAILABLE', {
    message: 'Another control plane does not answer.',
    retry_after_seconds: 2,
    cause,
  });
}
