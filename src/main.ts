/** The program: its roles, and nothing else. `start` runs all of them on this machine. */
import { join } from 'node:path';
import { readEnv } from './config/env.ts';
import { announceWhenReady } from './launch/ready.ts';
import { configOrRefuse, start } from './launch/start.ts';
import { refuse, StartError, sayOnStdout } from './launch/start-error.ts';
import { createLog } from './lib/log.ts';
import { runAgent } from './roles/agent.ts';
import { runControlPlane } from './roles/control-plane.ts';
import { runIngress } from './roles/ingress.ts';
import { shutdownSignal } from './roles/shutdown.ts';

const ROLES = ['start', 'control-plane', 'agent', 'ingress'] as const;
type Role = (typeof ROLES)[number];

/**
 * For the agent's buffers of a megabyte and more, from several threads: glibc, left to itself, raises this bound and
 * then keeps what was freed. With 256 MiB read lazily the agent held 250 MiB without it and 150 MiB with it.
 */
const RETURN_FREED_MEMORY = { MALLOC_MMAP_THRESHOLD_: '131072' };

const SUPERVISED = (['control-plane', 'agent', 'ingress'] as const).map((name) => ({
  name,
  args: [import.meta.filename, name],
  ...(name === 'agent' ? { env: RETURN_FREED_MEMORY } : {}),
}));

async function run(role: Role): Promise<number> {
  const env = readEnv();
  const config = configOrRefuse(env, process.cwd());
  const log = createLog(role, config.log_level);
  const say = sayOnStdout;
  switch (role) {
    case 'start':
      return start({
        config,
        env,
        project_dir: join(import.meta.dirname, '..'),
        say,
        log,
        roles: config.join === null ? SUPERVISED : SUPERVISED.filter(({ name }) => name === 'agent'),
        started: (_prepared, ended) => {
          if (config.join !== null) return say(`this machine is a host of ${config.join.control_plane}`);
          void announceWhenReady(config, ended, (line) => process.stdout.write(line), env);
        },
      });
    case 'control-plane':
      await runControlPlane({ config, log, say, signal: shutdownSignal() });
      return 0;
    case 'agent':
      await runAgent({ config, log, say, signal: shutdownSignal() });
      return 0;
    case 'ingress':
      await runIngress({ config, log, signal: shutdownSignal() });
      return 0;
  }
}

async function main(): Promise<void> {
  const role = ROLES.find((each) => each === process.argv[2]);
  if (!role || process.argv.length > 3) {
    throw new StartError(`usage: main.ts ${ROLES.join('|')}`);
  }
  process.exit(await run(role));
}

main().catch((error: unknown) => {
  if (error instanceof StartError) process.exit(refuse(error));
  createLog('main', 'error').fatal({ err: error }, 'ended by an error');
  process.exit(1);
});
