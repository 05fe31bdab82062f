/** The part of endpoint-cases.ts for the endpoints of a guest: ports, secrets, files and execs. */
import { insertHostname } from '../../src/control-plane/ports/store.ts';
import { newPlaceholder } from '../../src/control-plane/secrets/model.ts';
import { upsertSecret } from '../../src/control-plane/secrets/store.ts';
import { newName, type TestApi } from './api.ts';
import type { EndpointCase } from './endpoint-cases.ts';
import { makeExec } from './execs.ts';
import type { Person } from './people.ts';
import { makePort } from './ports.ts';

export function ports(api: TestApi): Record<string, EndpointCase> {
  const { db } = api;
  const instance = async (who: Person) => ({ id: (await api.instance(who)).id });
  const port = async (who: Person) => {
    const { id } = await api.instance(who);
    return { id, port_id: await makePort(db, id) };
  };
  const hostname = async (who: Person) => {
    const ids = await port(who);
    const name = `${newName()}.example.com`;
    await insertHostname(db, ids.port_id, name, 'proof');
    return { ...ids, hostname: name };
  };
  const one = '/v1/instances/{id}/ports/{port_id}';
  return {
    'POST /v1/instances/{id}/ports': { need: 'vm:write', resource: instance, body: () => ({ port: 8080 }) },
    'GET /v1/instances/{id}/ports': { need: 'vm:read', resource: instance },
    [`GET ${one}`]: { need: 'vm:read', resource: port },
    [`PATCH ${one}`]: { need: 'vm:write', resource: port, body: () => ({ access: 'public' }) },
    [`DELETE ${one}`]: { need: 'vm:write', resource: port },
    [`POST ${one}/open`]: { need: 'session', resource: port },
    [`POST ${one}/hostnames`]: {
      need: 'vm:write',
      resource: port,
      body: () => ({ hostname: `${newName()}.example.com` }),
    },
    [`DELETE ${one}/hostnames/{hostname}`]: { need: 'vm:write', resource: hostname },
  };
}

export function secrets(api: TestApi): Record<string, EndpointCase> {
  const body = { value: 'v', hosts: ['api.example.com'] };
  const instance = async (who: Person) => ({ id: (await api.instance(who)).id });
  const secret = async (who: Person) => {
    const { id } = await api.instance(who);
    const [name, value] = ['TOKEN', Buffer.from('sealed')];
    await upsertSecret(api.db, {
      ...{ instance_id: id, name, value },
      placeholder: newPlaceholder(),
      hosts: body.hosts,
    });
    return { id, name };
  };
  const one = '/v1/instances/{id}/secrets/{name}';
  return {
    'GET /v1/instances/{id}/secrets': { need: 'vm:read', resource: instance },
    [`PUT ${one}`]: { need: 'vm:write', resource: secret, body: () => body },
    [`DELETE ${one}`]: { need: 'vm:write', resource: secret },
  };
}

export function files(api: TestApi): Record<string, EndpointCase> {
  const instance = async (who: Person) => ({ id: (await api.instance(who)).id });
  const all = '/v1/instances/{id}/files';
  // Reading acts as root, too.
  const path: EndpointCase = { need: 'vm:write', resource: instance, query: 'path=%2Ftmp%2Fx' };
  return {
    [`GET ${all}`]: path,
    [`PUT ${all}`]: path,
    [`DELETE ${all}`]: path,
    [`GET ${all}/list`]: path,
    [`POST ${all}/move`]: { need: 'vm:write', resource: instance, body: () => ({ from: '/a', to: '/b' }) },
    [`POST ${all}/directory`]: { need: 'vm:write', resource: instance, body: () => ({ path: '/a' }) },
  };
}

export function execs(api: TestApi): Record<string, EndpointCase> {
  const { db, host_id } = api;
  const instance = async (who: Person) => ({ id: (await api.instance(who)).id });
  const exec = async (who: Person) => {
    const { id } = await api.instance(who);
    return { id, exec_id: await makeExec(db, { instance_id: id, host_id }) };
  };
  const all = '/v1/instances/{id}/execs';
  const one = `${all}/{exec_id}`;
  const read: EndpointCase = { need: 'vm:read', resource: exec };
  const write: EndpointCase = { need: 'vm:write', resource: exec };
  return {
    [`POST ${all}`]: { need: 'vm:write', resource: instance, body: () => ({ command: ['true'] }) },
    [`GET ${all}`]: { need: 'vm:read', resource: instance },
    [`GET ${one}`]: read,
    [`GET ${one}/output`]: read,
    [`POST ${one}/stdin`]: write,
    [`POST ${one}/signal`]: { ...write, body: () => ({ signal: 'SIGTERM' }) },
    [`POST ${one}/resize`]: { ...write, body: () => ({ columns: 80, rows: 24 }) },
    [`POST ${one}/ticket`]: write,
    [`DELETE ${one}`]: write,
  };
}
