/** Lists the aim of each figure of the benchmarks. `bench/README.md` shows the aim beside the last result. */
import type { Figure } from './figure.ts';

export interface Aim {
  readonly of: 'ratio' | 'value';
  readonly at: 'least' | 'most';
  readonly limit: number;
}

const atMost = (limit: number, of: Aim['of'] = 'ratio'): Aim => ({ of, at: 'most', limit });
const atLeast = (limit: number, of: Aim['of'] = 'ratio'): Aim => ({ of, at: 'least', limit });

export const AIMS: Readonly<Record<string, Aim>> = {
  'start/ssh_banner': atMost(1.05),
  'start/ssh_banner_from_template': atMost(0.4),
  'start/ssh_banner_resumed_beside_a_boot': atMost(0.5),
  'start/first_ssh_true_resumed_beside_a_boot': atMost(0.5),
  'backup/flush_512_mib': atMost(1),
  'backup/flush_512_mib_ordinary': atMost(1),
  'backup/core_seconds_512_mib_ordinary': atMost(1.5, 'value'),
  'backup/flat_256_gib': atMost(1.3),
  'guest-io/read_4_kib': atLeast(0.95),
  'guest-io/write_4_kib': atLeast(0.95),
  'guest-io/read_1_mib': atLeast(0.95),
  'guest-io/write_1_mib': atLeast(0.95),
  'hostile-guest/start': atMost(1.2),
  'hostile-guest/flush': atMost(1.2),
  'hostile-guest/exec': atMost(1.2),
  'hostile-guest/revoke': atMost(1.2),
  'hostile-guest/stop': atMost(1.2),
  'memory/flush_512_mib': atMost(200, 'value'),
  'memory/lazy_restore_512_mib': atMost(200, 'value'),
  'memory/flush_512_mib_s3': atMost(200, 'value'),
  'memory/lazy_restore_512_mib_s3': atMost(200, 'value'),
  'permissions/flush_512_mib': atMost(1.03),
  'requests/read_1_per_second': atLeast(0.4),
  'requests/read_16_per_second': atLeast(0.6),
  'requests/write_1_per_second': atLeast(0.25),
  'requests/write_16_per_second': atLeast(0.25),
  'execs/true_p50': atMost(1.2),
  'execs/true_p99': atMost(1.2),
  'execs/output_1_gib': atLeast(0.6),
  'files/written_mib_per_second': atLeast(0.8),
  'files/read_mib_per_second': atLeast(0.8),
  'http-ports/requests_1': atLeast(0.5),
  'http-ports/requests_64': atLeast(0.5),
  'http-ports/requests_1024': atLeast(0.5),
  'http-ports/down_1_gib': atLeast(0.8),
  'http-ports/up_1_gib': atLeast(0.8),
  'http-ports/memory_resident': atMost(1.05),
  'http-ports/memory_live': atMost(1.05),
  'scale/create_20000': atMost(1.2),
  'scale/delete_20000': atMost(1.2),
  'scale/start_to_answer_20000': atMost(1.2),
  'scale/get_20000': atMost(1.2),
  'scale/list_first_page_20000': atMost(1.2),
  'scale/list_deep_page_20000': atMost(1.2),
  'scale/list_by_label_20000': atMost(1.2),
  'scale/heartbeat_20000': atMost(1.2),
  // 200 times as many instances: no faster than linearly.
  'scale/tasks_20000': atMost(200),
  'scale/control_plane_memory_20000': atMost(200),
  'scale/database_20000': atMost(200),
  'scale/idle_20000': atMost(10, 'value'),
  'scale/many_starts_to_answer_p99': atMost(250, 'value'),
  'webhooks/deliveries_1': atLeast(3_000, 'value'),
  'webhooks/idle_delay_p50': atMost(25, 'value'),
  'webhooks/backlog_rss': atMost(1.2),
};

export function isReached(aim: Aim, figure: Figure): boolean {
  const value = figure[aim.of];
  return aim.at === 'most' ? value <= aim.limit : value >= aim.limit;
}
