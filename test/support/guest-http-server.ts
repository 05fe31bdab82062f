/**
 * Installs and starts a small HTTP server in a guest. It is written in Perl, because the image has nothing else for it.
 */
import type { GuestInstance } from './guest-instance.ts';

/**
 * Answers a PUT with its body, and any other request with the path and the length of the body. Keeps the path in /srv/log as soon
 * as it has the headers, so a request that arrives twice is seen even if its body does not. Keeps connections.
 */
const SERVER = `#!/usr/bin/perl
use IO::Socket::INET; $SIG{CHLD} = 'IGNORE';
my $s = IO::Socket::INET->new(LocalPort => 8080, Listen => 64, ReuseAddr => 1) or die;
while (my $c = $s->accept) { next if fork; while (my $line = <$c>) { my $len = 0;
  while (my $h = <$c>) { $len = $1 if $h =~ /^content-length: (\\d+)/i; last if $h =~ /^\\r?$/ }
  my ($id) = $line =~ m{/(\\S*)}; open(my $log, '>>', '/srv/log'); print $log "$id\\n"; close $log;
  my $got = ''; while (length($got) < $len) { read($c, $got, $len - length($got), length($got)) or last }
  my $body = $line =~ /^PUT/ ? $got : "$id " . length($got) . "\\n";
  print $c "HTTP/1.1 200 OK\\r\\nContent-Length: " . length($body) . "\\r\\n\\r\\n$body"; $c->flush } exit }
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
