/**
 * The entry of the server's processes: runs the role that the arguments name. The role `start` is the launcher, which
 * runs the other roles of its machine as child processes.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Config } from './config/config.ts';
import { readEnv } from './config/env.ts';
import { pathsIn } from './config/paths.ts';
import { boundLogFile, logDestination } from './launcher/log-file.ts';
import { AGENT_ENV, AGENT_FLAGS, MACHINES, type MachineKind, ROLES_OF } from './launcher/machine.ts';
import { announceWhenReady } from './launcher/ready.ts';
import { configOrRefuse, start } from './launcher/start.ts';
import { refuse, StartError, sayOnStdout } from './launcher/start-error.ts';
import { shutdownSignal } from './launcher/supervise.ts';
import { createLog, type Log } from './shared/log.ts';

const ROLES = ['start', 'control-plane', 'agent', 'ingress'] as const;
type Role = (typeof ROLES)[number];
/** Of a control plane of a fleet, where `berth migrate` upgrades the database. Otherwise it does so itself. */
const MIGRATED = '--migrated';

const supervised = (machine: MachineKind) =>
  ROLES_OF[machine].map((name) => ({
    name,
    args: [
      ...(name === 'agent' ? AGENT_FLAGS : []),
      ...[import.meta.filename, name],
      ...(machine === 'control-plane' ? [MIGRATED] : []),
    ],
    ...(name === 'agent' ? { env: AGENT_ENV } : {}),
  }));

async function run(role: Role, machine: MachineKind, migrates: boolean): Promise<number> {
  const env = readEnv();
  const config = configOrRefuse(env, process.cwd());
  const { log_file } = pathsIn(config.data_dir);
  const destination = logDestination(log_file);
  const log = createLog(role, config.log_level, destination);
  const say = sayOnStdout;
  // Each role loads only its own modules.
  switch (role) {
    case 'start':
      return start({
        machine,
        config,
        env,
        project_dir: join(import.meta.dirname, '..'),
        say,
        log,
        roles: supervised(machine),
        started: (_prepared, ended) => {
          say('starting');
          if (destination) void boundLogFile(log_file, ended);
          void announceWhenReady(config, ended, (line) => process.stdout.write(line), env, {
            log_file: destination ? log_file : null,
          });
        },
      });
    case 'control-plane': {
      const { runControlPlane } = await import('./launcher/roles/control-plane.ts');
      return whileTraced(role, config, log, () =>
        runControlPlane({ config, log, say, signal: shutdownSignal(), migrates }),
      );
    }
    case 'agent': {
      const { runAgent } = await import('./launcher/roles/agent.ts');
      return whileTraced(role, config, log, () => runAgent({ config, log, say, signal: shutdownSignal() }));
    }
    case 'ingress': {
      const { runIngress } = await import('./launcher/roles/ingress.ts');
      await runIngress({ config, log, signal: shutdownSignal() });
      return 0;
    }
  }
}

/** No module of OpenTelemetry is loaded where no endpoint is set. */
async function whileTraced(
  role: Role,
  { traces }: Config,
  log: Log,
  run: () => Promise<void>,
): Promise<number> {
  const sending = traces && (await import('./launcher/send-traces.ts')).sendTraces({ role, traces, log });
  await run();
  await sending?.close();
  return 0;
}

/**
 * A process that crashes, or one that it has started, leaves no memory behind: it may hold keys and values of secrets. core(5); also
 * where the system passes core dumps to a program.
 */
function leaveMemoryOutOfCoreDumps(): void {
  try {
    writeFileSync('/proc/self/coredump_filter', '0');
  } catch {
    // A kernel without core dumps has no such file.
  }
}

async function main(): Promise<void> {
  leaveMemoryOutOfCoreDumps();
  // If the reader of the pipe has ended or the terminal was closed, output is lost and the work continues.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => undefined);
  const [, , asked, option, ...more] = process.argv;
  const role = ROLES.find((each) => each === asked);
  const migrated = role === 'control-plane' && option === MIGRATED;
  const machine = MACHINES.find((each) => each === ((role === 'start' && option) || 'all'));
  const understood = option === undefined || role === 'start' || migrated;
  if (!role || !machine || !understood || more.length > 0) {
    throw new StartError(
      `usage: main.ts ${ROLES.join('|')}, main.ts start ${MACHINES.join('|')}, or main.ts control-plane ${MIGRATED}`,
    );
  }
  process.exit(await run(role, machine, !migrated));
}

main().catch((error: unknown) => {
  if (error instanceof StartError) process.exit(refuse(error));
  createLog('main', 'error').fatal({ err: error }, 'ended by an error');
  process.exit(1);
});
