import assert from 'node:assert/strict';
import { test } from 'node:test';
import { localLinkWarning } from '../../client/src/words.ts';

test('warns of a link that others cannot open, and names the setting', () => {
  for (const host of ['127.0.0.1:7400', '0.0.0.0:7400', 'localhost:7400', '[::1]', '127.1.2.3'])
    assert.match(localLinkWarning(`http://${host}/invitation#token=x`) ?? '', /BERTH_PUBLIC_URL/, host);
  for (const link of [
    'https://berth.example.org/invitation',
    'http://127.example.org/',
    'http://10.0.0.1/',
    '',
  ])
    assert.equal(localLinkWarning(link), undefined, link);
});
