/** What a test's server says of its installation, unless the test is about that. */
import { tmpdir } from 'node:os';
import type { Installation } from '../../src/control-plane/fleet/weaknesses.ts';

export const NO_INSTALLATION: Installation = {
  origins: [],
  weak_settings: [],
  weakFiles: () => [],
  data_dir: tmpdir(),
  removal_delay_ms: 3_600_000,
  object_store: { kind: 'folder', place: tmpdir() },
};
