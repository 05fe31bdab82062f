/** The routes of all HTTP ports, by hostname and by instance. */
import type { HttpRoute } from '../../protocol/ingress-types.ts';
import type { HttpPortId, InstanceId } from '../../shared/ids.ts';
import type { RouteChange } from '../route-follower.ts';

export class RouteTable {
  readonly #by_hostname = new Map<string, HttpRoute>();
  readonly #by_instance = new Map<InstanceId, HttpRoute[]>();

  find(hostname: string): HttpRoute | undefined {
    return this.#by_hostname.get(hostname);
  }

  ofInstance(id: InstanceId): readonly HttpRoute[] {
    return this.#by_instance.get(id) ?? [];
  }

  /** Returns the ports that have no route any more. */
  apply({ changed, routes }: RouteChange<HttpRoute>): ReadonlySet<HttpPortId> {
    const gone = new Set<HttpPortId>();
    for (const id of changed ?? [...this.#by_instance.keys()]) {
      for (const { port_id, hostnames } of this.ofInstance(id)) {
        gone.add(port_id);
        for (const name of hostnames) {
          // Another port may have the name by now.
          if (this.#by_hostname.get(name)?.port_id === port_id) this.#by_hostname.delete(name);
        }
      }
      this.#by_instance.delete(id);
    }
    for (const route of routes) {
      gone.delete(route.port_id);
      for (const name of route.hostnames) this.#by_hostname.set(name, route);
      this.#by_instance.set(route.instance_id, [...this.ofInstance(route.instance_id), route]);
    }
    return gone;
  }
}
