/**
 * Keeps the control planes that an agent or an ingress can call, and chooses the one to call: the current one until it
 * fails, then the next.
 *
 * The list starts with the configured address; `learn` adds those that control planes report, each with the fingerprint
 * of its certificate. A connection to an entry with a fingerprint is accepted only with that certificate:
 *
 * - If the configured fingerprint is no longer reported, the certificate was replaced: the first reported one counts.
 * - The configured address may be a load balancer's, behind which each control plane has its own certificate. So it is
 *   in the list once for each reported certificate.
 */
import type { TLSSocket } from 'node:tls';
import { Agent, buildConnector } from 'undici';
import { CONTROL_PLANES_MAX, type ListedControlPlane } from './ingress-types.ts';

/** A control plane that cannot be reached costs no more before another one is tried. */
const CONTROL_PLANE_CONNECT_MS = 3_000;

export function pinnedConnector(fingerprint: string): buildConnector.connector {
  const connect = buildConnector({
    rejectUnauthorized: false,
    maxCachedSessions: 0,
    minVersion: 'TLSv1.3',
    timeout: CONTROL_PLANE_CONNECT_MS,
  });
  return (options, callback) =>
    connect(options, (...[error, socket]) => {
      if (error) return callback(error, null);
      if ((socket as TLSSocket).getPeerX509Certificate?.()?.fingerprint256 === fingerprint) {
        return callback(null, socket);
      }
      socket.destroy();
      callback(new Error('the certificate of the control plane is not the one in the join token'), null);
    });
}

export interface ControlPlaneAddress {
  /** `unix:/path/control.sock` or `http(s)://host:port`. */
  readonly address: string;
  /** A function where it changes. */
  readonly token: string | (() => string);
  /** Of the certificate that the control plane must show (`X509Certificate.fingerprint256`). */
  readonly fingerprint?: string;
  /** As {@link ControlPlanePlaces.learn} has reported them. */
  readonly known?: readonly KnownControlPlane[];
}

type KnownControlPlane = Pick<ControlPlaneAccess, 'fingerprint'> & { readonly url: string };

export interface ControlPlaneAccess {
  readonly origin: string;
  readonly fingerprint: string | undefined;
  readonly agent: Agent;
  /** For renewals alone, so that no other call delays them. */
  lease: Agent;
  readonly streams: Agent;
  /** Aborts when the client goes on to another place: polls held here would otherwise go on for long. */
  left: AbortController;
  readonly connect: Connect;
}

type Connect = NonNullable<Agent.Options['connect']>;

const leaseAgent = (connect: Connect) => new Agent({ connect, connections: 1 });

function placeAt(address: string, fingerprint: string | undefined): ControlPlaneAccess {
  const socket = address.startsWith('unix:') ? address.slice('unix:'.length) : undefined;
  const plain = socket === undefined ? { timeout: CONTROL_PLANE_CONNECT_MS } : { socketPath: socket };
  const connect = fingerprint === undefined ? plain : pinnedConnector(fingerprint);
  return {
    origin: socket === undefined ? address.replace(/\/$/, '') : 'http://control-plane',
    fingerprint,
    agent: new Agent({ connect, connections: 32 }),
    lease: leaseAgent(connect),
    // Each upgrade keeps its connection.
    streams: new Agent({ connect }),
    left: new AbortController(),
    connect,
  };
}

/** The pinned certificate, or the one that has replaced it. Undefined: none is pinned. */
function stillShown(pinned: string | undefined, known: readonly KnownControlPlane[]): string | undefined {
  if (pinned === undefined || known.some(({ fingerprint }) => fingerprint === pinned)) return pinned;
  return known[0]?.fingerprint;
}

export class ControlPlanePlaces {
  readonly #onLearned: (known: readonly ListedControlPlane[]) => void;
  #given: ControlPlaneAccess;
  #places: readonly ControlPlaneAccess[];
  #current: ControlPlaneAccess;

  /** `onLearned` gets what was learned at each change, to keep it for the next start. */
  constructor(
    { address, fingerprint, known = [] }: ControlPlaneAddress,
    onLearned: (known: readonly ListedControlPlane[]) => void,
  ) {
    this.#given = placeAt(address, fingerprint);
    this.#places = [this.#given];
    this.#current = this.#given;
    this.#onLearned = onLearned;
    this.#adopt(known);
  }

  get current(): ControlPlaneAccess {
    return this.#current;
  }

  get count(): number {
    return this.#places.length;
  }

  /** It has failed: the next call goes to the next one. */
  leave(place: ControlPlaneAccess): void {
    if (place !== this.#current || this.#places.length === 1) return;
    const next = (this.#places.indexOf(place) + 1) % this.#places.length;
    this.#current = this.#places[next] ?? this.#given;
    place.left.abort();
    place.left = new AbortController();
  }

  /**
   * A renewal was not answered: the next one, wherever it goes, opens a new connection. Where only answers are lost, that fails;
   * over each old connection the host could renew once more, which would delay the start of its VMs elsewhere.
   */
  forgetLeaseConnections(): void {
    for (const place of this.#places) {
      void place.lease.destroy();
      place.lease = leaseAgent(place.connect);
    }
  }

  /** These live. An empty list says nothing: a lone control plane is none that others reach. */
  learn(listed: readonly ListedControlPlane[]): void {
    const known = listed.slice(0, CONTROL_PLANES_MAX);
    if (this.#adopt(known)) this.#onLearned(known);
  }

  /** Whether they differ from those that were known. */
  #adopt(known: readonly KnownControlPlane[]): boolean {
    if (known.length === 0) return false;
    const before = this.#places;
    const found = [...before];
    const at = (url: string, fingerprint: string | undefined) => {
      const is = (each: ControlPlaneAccess) => each.origin === url && each.fingerprint === fingerprint;
      const place = found.find(is) ?? placeAt(url, fingerprint);
      if (!found.includes(place)) found.push(place);
      return place;
    };
    const { origin } = this.#given;
    const given = at(origin, stillShown(this.#given.fingerprint, known));
    // A balancer leads to control planes with either certificate.
    const balanced = given.fingerprint === undefined ? [] : known.map((each) => ({ ...each, url: origin }));
    const others = [...known, ...balanced].map(({ url, fingerprint }) => at(url, fingerprint));
    const places = [...new Set([given, ...others])];
    this.#given = given;
    if (places.length === before.length && places.every((each) => before.includes(each))) return false;
    this.#places = places;
    const gone = before.filter((each) => !places.includes(each));
    if (gone.includes(this.#current)) this.#current = this.#given;
    for (const place of gone) {
      place.left.abort();
      // Streams end with the VMs or callers that they serve.
      for (const agent of [place.agent, place.lease, place.streams]) void agent.close();
    }
    return true;
  }

  async close(): Promise<void> {
    for (const { agent, lease, streams, left } of this.#places) {
      left.abort();
      await streams.destroy();
      await lease.destroy();
      await agent.destroy();
    }
  }
}
