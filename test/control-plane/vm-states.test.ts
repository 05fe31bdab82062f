/** The interface's table of states and calls, against real rows: the answer of each call, and the state after it. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { VmState } from '../../src/control-plane/vms/model.ts';
import { apiForFile, type VmOut } from '../support/api.ts';
import type { ErrorBody } from '../support/client.ts';
import { assertError } from '../support/expect.ts';
import { instanceIn, stateOf } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();

type Expected = 200 | 202 | 'CONFLICT' | 'VM_NOT_RUNNING';
/** Columns: POST vm, DELETE vm, restart and suspend, flush. */
const TABLE: Record<VmState, readonly [Expected, Expected, Expected, Expected]> = {
  stopped: [202, 200, 'VM_NOT_RUNNING', 200],
  starting: [200, 202, 'CONFLICT', 'CONFLICT'],
  running: [200, 202, 202, 200],
  restarting: [200, 202, 'CONFLICT', 200],
  suspending: ['CONFLICT', 202, 'CONFLICT', 'CONFLICT'],
  suspended: [202, 202, 'VM_NOT_RUNNING', 200],
  stopping: ['CONFLICT', 202, 'VM_NOT_RUNNING', 200],
  failed: [202, 202, 'VM_NOT_RUNNING', 200],
};
const AFTER = { start: 'starting', stop: 'stopping', restart: 'restarting', suspend: 'suspending' } as const;
const CALLS = [
  ['start', 'POST', 'vm', 0],
  ['stop', 'DELETE', 'vm', 1],
  ['restart', 'POST', 'vm/restart', 2],
  ['suspend', 'POST', 'vm/suspend', 2],
] as const;
/** What a refusal must name, besides the state: the way out of it. */
const REMEDY: Record<string, RegExp> = {
  starting: /wait until it is running/,
  restarting: /wait until it is running/,
  suspending: /wait until it is suspended/,
  stopping: /wait until it is stopped/,
  stopped: /Start it first/,
  suspended: /Start it first/,
  failed: /Start it again/,
};

for (const [state, row] of Object.entries(TABLE) as [VmState, (typeof TABLE)[VmState]][]) {
  describe(`a VM that is ${state}`, () => {
    for (const [call, method, path, column] of CALLS) {
      const expected = row[column];
      test(`${call} answers ${expected}`, async () => {
        const { id } = await instanceIn(api, owner, state);
        const before_call = await stateOf(api, owner, id);
        const answer = await api.as(owner).call<VmOut>(method, `/v1/instances/${id}/${path}`);
        if (typeof expected === 'string') {
          const { message } = assertError(answer, expected);
          assert.match(message, new RegExp(`is ${state}|has ${state}`));
          assert.match(message, REMEDY[state] ?? /never/);
          assert.deepEqual(await stateOf(api, owner, id), before_call);
          return;
        }
        assert.equal(answer.status, expected, answer.text);
        assert.equal(answer.body.state, expected === 200 ? state : AFTER[call]);
        assert.deepEqual(await stateOf(api, owner, id), answer.body);
        if (expected === 200) assert.deepEqual(answer.body, before_call);
        else assert.equal(answer.body.reason?.actor, owner.user_id);
        const new_boot = call === 'start' && expected === 202;
        assert.equal(answer.body.boot, before_call.boot + (new_boot ? 1 : 0));
        if (before_call.id !== null) assert.equal(answer.body.id === before_call.id, !new_boot);
      });
    }

    // The same column as restart, but for its success.
    if (state !== 'running') {
      test(`exec answers ${row[2]}`, async () => {
        const { id } = await instanceIn(api, owner, state);
        const answer = await api.as(owner).post(`/v1/instances/${id}/vm/exec`, { command: ['true'] });
        const { message } = assertError(answer, row[2] as 'CONFLICT');
        assert.match(message, REMEDY[state] ?? /never/);
      });
    }

    test(`flush answers ${row[3]}`, async () => {
      const { agent } = api;
      const { id } = await instanceIn(api, owner, state);
      const answering = api
        .as(owner)
        .post<ErrorBody & { generation: number; uploaded_bytes: number }>(`/v1/instances/${id}/vm/flush`);
      if (['running', 'restarting', 'failed'].includes(state)) {
        const flush_id = await agent.askedToFlush(id);
        await agent.beginFlush(flush_id);
        await agent.commit(id, 1);
        await agent.endFlush(flush_id);
      } else if (state === 'stopping') {
        await agent.stopped(id);
      }
      const answer = await answering;
      if (typeof row[3] === 'string') {
        assertError(answer, row[3], REMEDY[state]);
        return;
      }
      assert.equal(answer.status, 200, answer.text);
      const served = ['running', 'restarting', 'failed'].includes(state);
      assert.equal(answer.body.generation, served ? 1 : 0);
      if (!served) assert.equal(answer.body.uploaded_bytes, 0);
    });
  });
}
