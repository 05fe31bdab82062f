/** The fencer's process: `fencer-process.ts DATA_FOLDER LOG_LEVEL`. It loads almost nothing. */
import type { LogLevel } from '../../config/config.ts';
import { pathsIn } from '../../config/paths.ts';
import { createLog } from '../../shared/log.ts';
import { runFencer } from './fencer.ts';

const [, , data = '', level = 'info'] = process.argv;
const ending = new AbortController();
for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => ending.abort());
await runFencer(pathsIn(data), createLog('fencer', level as LogLevel), ending.signal);
