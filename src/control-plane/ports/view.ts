import { rfc3339 } from '../../shared/clock.ts';
import { type HttpEndpoint, hostnameOf, requestsPerMinute, txtRecord, urlOf } from './model.ts';
import type { HostnameRow, PortRow } from './store.ts';

export function hostnameView({ hostname, proof, active, checked_at, problem }: HostnameRow) {
  return {
    hostname,
    status: active ? ('active' as const) : ('pending' as const),
    txt: txtRecord(hostname, proof),
    checked_at: checked_at && rfc3339(new Date(checked_at)),
    problem,
  };
}

export function portView(endpoint: HttpEndpoint, row: PortRow) {
  const hostname = hostnameOf(endpoint, row.label);
  const { minute, requests, previous_requests } = row;
  const counts =
    minute === null ? null : { minute, requests: requests ?? 0, previous_requests: previous_requests ?? 0 };
  return {
    id: row.id,
    instance_id: row.instance_id,
    port: row.port,
    access: row.access,
    hostname,
    url: urlOf(endpoint, hostname),
    hostnames: row.hostnames.map(hostnameView),
    requests_per_minute: requestsPerMinute(counts, Date.now()),
    last_error: row.last_error,
    created_at: rfc3339(row.created_at),
    updated_at: rfc3339(row.updated_at),
  };
}

/** For events and the audit log: without what changes by itself. */
export function portRecord(endpoint: HttpEndpoint, row: PortRow) {
  const { requests_per_minute: _rate, last_error: _error, ...record } = portView(endpoint, row);
  return record;
}
