/**
 * `node test/ingress/answer-rounds.ts ANSWERS [SEED]`: so many hostile answers, a fifth of them through each relay. A broken promise prints the answer, and how
 * to get it again; a throw that reached the process ends this one.
 */
import assert from 'node:assert/strict';
import { reportThrows } from '../../src/shared/contain.ts';
import {
  adapterRelay,
  gateByHttp1,
  gateByHttp2,
  ingressRelays,
  runAnswers,
} from '../support/answer-rounds.ts';

const CLIENTS = 8;
const [, , answers = '1000', seed = String(Math.floor(Math.random() * 2 ** 20))] = process.argv;
const ends: (() => unknown)[] = [];
const clean = { after: (then: () => unknown) => void ends.push(then) };
const thrown: unknown[] = [];
reportThrows((error) => thrown.push(error));
const relays = [
  ...(await ingressRelays(clean)),
  await gateByHttp1(clean),
  await gateByHttp2(clean),
  await adapterRelay(clean),
];
for (const relay of relays) {
  const began_ms = performance.now();
  const rounds = {
    answers: Math.ceil(Number(answers) / relays.length),
    seed: Number(seed),
    clients: CLIENTS,
  };
  const seen = await runAnswers(relay, rounds);
  assert.deepEqual(thrown, [], `${relay.name}: a value of an answer reached a call that throws`);
  const seconds = Math.round((performance.now() - began_ms) / 1_000);
  process.stdout.write(`${relay.name}, seed ${seed}: ${rounds.answers} answers in ${seconds} s: ${seen}\n`);
}
for (const end of ends.reverse()) await end();
process.exit();
