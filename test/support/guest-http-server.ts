/** A small HTTP server inside a guest, which has Perl and nothing else for it. */
import type { GuestInstance } from './guest-instance.ts';

/** Answers with the path and the length of the body, and keeps the path in /srv/log. */
const SERVER = `#!/usr/bin/perl
use IO::Socket::INET; $SIG{CHLD} = 'IGNORE';
my $s = IO::Socket::INET->new(LocalPort => 8080, Listen => 64, ReuseAddr => 1) or die;
while (my $c = $s->accept) { next if fork; my ($len, $line) = (0, scalar <$c>);
  while (my $h = <$c>) { $len = $1 if $h =~ /^content-length: (\\d+)/i; last if $h =~ /^\\r?$/ }
  my $got = 0; while ($got < $len) { my $n = read($c, my $b, $len - $got) or last; $got += $n }
  my ($id) = $line =~ m{/(\\S*)}; open(my $log, '>>', '/srv/log'); print $log "$id\\n"; close $log;
  my $body = "$id $got\\n";
  print $c "HTTP/1.1 200 OK\\r\\nContent-Length: " . length($body) . "\\r\\nConnection: close\\r\\n\\r\\n$body"; exit }
`;

const RC_LOCAL = '#!/bin/sh\nsetsid /usr/local/bin/serve > /dev/null 2>&1 < /dev/null &\n';

export async function installServer(guest: GuestInstance): Promise<void> {
  await guest.sh('cat > /usr/local/bin/serve && chmod +x /usr/local/bin/serve', SERVER);
}

/** Resolves once it listens. */
export async function startServer(guest: GuestInstance): Promise<void> {
  const wait = `while ! ${connectsTo('127.0.0.1', 8080)}; do sleep 0.05; done`;
  await guest.sh(`(setsid serve > /dev/null 2>&1 < /dev/null &); ${wait}`);
}

/** A command in the guest that fails unless the address accepts a connection. */
export function connectsTo(host: string, port: number): string {
  return `perl -MIO::Socket::INET -e 'exit !IO::Socket::INET->new(PeerHost => "${host}", PeerPort => ${port}, Timeout => 5)'`;
}

export async function startServerAtBoot(guest: GuestInstance): Promise<void> {
  await guest.sh('cat > /etc/rc.local && chmod +x /etc/rc.local', RC_LOCAL);
}
