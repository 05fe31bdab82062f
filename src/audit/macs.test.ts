import assert from 'node:assert/strict';
import { createHmac, randomBytes } from 'node:crypto';
import { test } from 'node:test';
import fc from 'fast-check';
import { canonicalJson } from '../lib/canonical-json.ts';
import { deriveKey } from '../lib/seal.ts';
import { AuditMacs, type WrittenEntry } from './macs.ts';

const secret_key = randomBytes(32);
const macs = new AuditMacs(secret_key);
const text = fc.string({ unit: 'binary' });
const maybe = fc.option(text, { nil: null });
const entries = fc.record({
  ...{ org_id: text, id: text, at: text, actor: text, action: text },
  ...{ target: maybe, ip: maybe, request_id: maybe, data: fc.dictionary(text, fc.jsonValue()) },
}) as unknown as fc.Arbitrary<WrittenEntry>;

test('both MACs are of the canonical JSON of an entry', () => {
  const keyed = (info: string) => createHmac('sha256', deriveKey(secret_key, info));
  fc.assert(
    fc.property(entries, fc.nat(), (entry, seq) => {
      const { org_id, ...without } = entry;
      const own = keyed('berth audit entry v1').update(canonicalJson(entry)).digest();
      assert.deepEqual(macs.own(entry), own);
      const previous = randomBytes(32);
      const chained = keyed('berth audit v1')
        .update(previous)
        .update(`${seq}${canonicalJson(without)}`)
        .digest();
      assert.deepEqual(macs.chained(previous, seq, entry), chained);
      assert.deepEqual(macs.chainedAfter(previous, seq, entry, own), chained);
      assert.equal(macs.chainedAfter(previous, seq, { ...entry, org_id: `${org_id}x` as never }, own), null);
    }),
  );
});
