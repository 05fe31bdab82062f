import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newId } from '../shared/ids.ts';
import {
  DATA_DIR_MAX_BYTES,
  dataDirProblem,
  pathsIn,
  SOCKET_NAME_MAX_BYTES,
  SOCKET_PATH_MAX_BYTES,
} from './paths.ts';

test('every path is below the data folder, and none is used twice', () => {
  const paths = pathsIn('/srv/berth');
  const all = Object.values(paths);
  assert(all.every((path) => path === '/srv/berth' || path.startsWith('/srv/berth/')));
  assert.equal(new Set(all).size, all.length);
});

test('below the longest data folder allowed, every socket path can be bound', () => {
  const data = `/${'d'.repeat(DATA_DIR_MAX_BYTES - 1)}`;
  assert.equal(dataDirProblem(data), undefined);
  const paths = pathsIn(data);
  const socket = `${paths.vms}/${newId('inst')}/${'s'.repeat(SOCKET_NAME_MAX_BYTES)}`;
  assert.equal(Buffer.byteLength(socket), SOCKET_PATH_MAX_BYTES);
  for (const path of [paths.agent_api_socket, `${paths.postgres}/socket/.s.PGSQL.5432`]) {
    assert(Buffer.byteLength(path) <= SOCKET_PATH_MAX_BYTES, path);
  }
  assert.match(dataDirProblem(`${data}d`) ?? '', /55 bytes; expected at most 54/);
});

test('the limit counts bytes, not characters', () => {
  assert.match(dataDirProblem(`/${'ä'.repeat(28)}`) ?? '', /57 bytes/);
});
