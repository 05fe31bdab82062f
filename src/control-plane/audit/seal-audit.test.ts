import assert from 'node:assert/strict';
import { createHmac, randomBytes } from 'node:crypto';
import { test } from 'node:test';
import fc from 'fast-check';
import { canonicalJson } from '../../shared/canonical-json.ts';
import type { AuditId, OrgId } from '../../shared/ids.ts';
import { deriveKey } from '../../shared/seal.ts';
import { AuditMacs, type WrittenEntry } from './seal-audit.ts';

const root_key = randomBytes(32);
const macs = new AuditMacs(root_key);
const text = fc.string({ unit: 'binary' });
const maybe = fc.option(text, { nil: null });
const entries: fc.Arbitrary<WrittenEntry> = fc.record({
  ...{ org_id: text.map((id) => id as OrgId), id: text.map((id) => id as AuditId) },
  ...{ at: text, actor: text, action: text },
  ...{ target: maybe, ip: maybe, request_id: maybe, data: fc.dictionary(text, fc.jsonValue()) },
});
const keyed = (info: string) => createHmac('sha256', deriveKey(root_key, info));

test("an entry's own MAC covers its canonical JSON, and no column beside it", () => {
  fc.assert(
    fc.property(entries, (entry) => {
      const own = keyed('berth audit entry v1').update(canonicalJson(entry)).digest();
      assert.deepEqual(macs.own(entry), own);
      assert.deepEqual(macs.own({ ...entry, seq: 7, serial: 9 } as WrittenEntry), own);
    }),
  );
});

test('the chain MAC covers the one before, the number and the own MAC', () => {
  const [previous, own] = [randomBytes(32), randomBytes(32)];
  const expected = keyed('berth audit v1')
    .update(Buffer.concat([previous, Buffer.from('12'), own]))
    .digest();
  assert.deepEqual(macs.chained(previous, 12, own), expected);
});
