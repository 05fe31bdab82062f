/** Brings instances into every state that a VM can have, through calls of users and reports of the agent. */
import assert from 'node:assert/strict';
import { sql } from 'kysely';
import type { VmState } from '../../src/control-plane/vms/model.ts';
import type { HostId, InstanceId } from '../../src/shared/ids.ts';
import type { InstanceOut, TestApi, VmOut } from './api.ts';
import type { Person } from './people.ts';
import { until } from './waiting.ts';

/** A new instance whose VM is in `state`. */
export async function instanceIn(api: TestApi, who: Person, state: VmState): Promise<InstanceOut> {
  const instance = await api.instance(who);
  const vm = `/v1/instances/${instance.id}/vm`;
  const client = api.as(who);
  const { agent } = api;
  const accepted = (answer: { status: number; text: string }) =>
    assert.equal(answer.status, 202, answer.text);
  if (state !== 'stopped') {
    accepted(await client.post(vm));
    await agent.assigned(instance.id);
  }
  switch (state) {
    case 'stopped':
    case 'starting':
      break;
    case 'running':
      await agent.ready(instance.id);
      break;
    case 'restarting':
      await agent.ready(instance.id);
      accepted(await client.post(`${vm}/restart`));
      break;
    case 'stopping':
      await agent.ready(instance.id);
      accepted(await client.delete(vm));
      break;
    case 'failed':
      await agent.failed(instance.id);
      break;
    case 'suspending':
    case 'suspended':
      await agent.ready(instance.id);
      accepted(await client.post(`${vm}/suspend`));
      if (state === 'suspended') await agent.suspended(instance.id);
      break;
  }
  const answer = await client.get<VmOut>(vm);
  assert.equal(answer.body.state, state);
  return instance;
}

export async function stateOf(api: TestApi, who: Person, id: string): Promise<VmOut> {
  return (await api.as(who).get<VmOut>(`/v1/instances/${id}/vm`)).body;
}

/** Runs `work` while only that host takes new VMs. */
export async function onlyOn<T>({ db }: TestApi, host_id: string, work: () => Promise<T>): Promise<T> {
  const others = db
    .updateTable('hosts')
    .where('id', '!=', host_id as HostId)
    .where('cordoned', '=', false);
  const cordoned = await others.set({ cordoned: true }).returning('id').execute();
  try {
    return await work();
  } finally {
    for (const { id } of cordoned)
      await db.updateTable('hosts').set({ cordoned: false }).where('id', '=', id).execute();
  }
}

/** Simulates use of the VM: moves its last use back by an hour, so that the next report changes it without another call. */
export async function isStillUsed({ db }: TestApi, id: string): Promise<void> {
  const instance_id = id as InstanceId;
  const vm = () => db.selectFrom('vms').select('active_at').where('instance_id', '=', instance_id);
  const back = sql<Date>`now() - interval '1 hour'`;
  await db.updateTable('vms').set({ active_at: back }).where('instance_id', '=', instance_id).execute();
  await until('the VM is said to be in use', async () => {
    const { active_at } = await vm().executeTakeFirstOrThrow();
    return active_at !== null && active_at.getTime() > Date.now() - 60_000;
  });
}
