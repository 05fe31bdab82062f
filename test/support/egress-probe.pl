# Sends the attempts of egress-attempts.ts, as root of a guest. It is Perl, which every Debian has. KIND is tcp, udp,
# icmp or raw (PORT is the IP protocol then).
#
#   stdin   ID KIND ADDRESS PORT WAIT_MS HEX[,HEX…]
#   stdout  ID HEX, with the answer; or ID -
use strict; use warnings;
use Socket qw(:DEFAULT inet_pton pack_sockaddr_in6);
use IO::Select; use Time::HiRes qw(sleep time);
$| = 1; $SIG{PIPE} = 'IGNORE';

sub target { my ($address, $port) = @_;
  return $address =~ /:/ ? (PF_INET6, pack_sockaddr_in6($port, inet_pton(AF_INET6, $address)))
    : (PF_INET, pack_sockaddr_in($port, inet_aton($address))); }

sub received { my ($s, $wait_ms) = @_;
  my ($end, $all, $select) = (time + $wait_ms / 1000, '', IO::Select->new($s));
  while ((my $left = $end - time) > 0) {
    next unless $select->can_read($left);
    my $got = sysread($s, my $bytes, 65536);
    last unless $got;
    $all .= $bytes;
    last if length $all > 4096;
  }
  return $all; }

sub probe { my ($kind, $address, $port, $wait_ms, @parts) = @_;
  my ($family, $to) = target($address, $kind =~ /^(tcp|udp)$/ ? $port : 0);
  my $s;
  if ($kind eq 'tcp') {
    socket($s, $family, SOCK_STREAM, 0) or return '';
    setsockopt($s, 6, 1, 1); # TCP_NODELAY
    local $SIG{ALRM} = sub { die "late\n" };
    my $connected = eval { alarm 3; my $ok = connect($s, $to); alarm 0; $ok }; alarm 0;
    return '' unless $connected;
    for my $part (@parts) { defined syswrite($s, $part) or last; sleep 0.03 if @parts > 1; }
  } elsif ($kind eq 'udp') {
    socket($s, $family, SOCK_DGRAM, 0) or return '';
    connect($s, $to) or return '';
    syswrite($s, $_) for @parts;
  } else {
    socket($s, $family, SOCK_RAW, $port) or return '';
    send($s, $_, 0, $to) for @parts;
    return '' if $kind eq 'raw';
  }
  return received($s, $wait_ms); }

my @running;
while (my $line = <STDIN>) {
  chomp $line;
  my ($id, $kind, $address, $port, $wait_ms, $hex) = split / /, $line;
  last if !defined $id || $id eq 'end';
  my $pid = fork;
  if (!$pid) {
    my $reply = probe($kind, $address, $port, $wait_ms, map { pack 'H*', $_ } split /,/, $hex // '');
    syswrite(STDOUT, "$id " . (length $reply ? unpack('H*', substr($reply, 0, 1500)) : '-') . "\n");
    exit 0;
  }
  push @running, $pid;
  waitpid(shift @running, 0) if @running >= 32;
}
waitpid($_, 0) for @running;
