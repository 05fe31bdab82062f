#!/usr/bin/perl
# Replaces the guest agent in a hostile guest. It answers each question as the file /run/mode says, which root of the
# guest writes. In mode `good` it becomes the real guest agent.
use strict;
use warnings;
use Fcntl;

my $port;
my $held = '';
my $before = '{"return":{}}';
for (;;) {
	last if sysopen $port, '/dev/virtio-ports/org.qemu.guest_agent.0', O_RDWR | O_NONBLOCK;
	select undef, undef, undef, 0.1;
}

sub mode {
	open my $file, '<', '/run/mode' or return 'good';
	my $line = <$file> // '';
	chomp $line;
	return $line;
}

sub become_the_real_one {
	close $port;
	exec '/usr/lib/berth/guest-agent.real' or die;
}

# All of it, unless another mode is wanted meanwhile: the host may read none of it. True: there was none.
sub put {
	my ($text, $piece) = @_;
	my $mode = mode();
	for (my $at = 0; $at < length $text;) {
		my $done = syswrite $port, $text, $piece // 32768, $at;
		if (defined $done) { $at += $done }
		else {
			select undef, undef, undef, 0.02;
			return 0 if mode() ne $mode;
		}
	}
	return 1;
}

# So often; a text of that length is more than the guest has room for.
sub put_often {
	my ($text, $times, $piece) = @_;
	my $many = int(32768 / length $text) || 1;
	$text = $text x $many;
	for (my $done = 0; $done < $times; $done += $many) { put($text, $piece) or return 0 }
	return 1;
}

sub answer {
	my ($request) = @_;
	my $mode = mode();
	become_the_real_one() if $mode eq 'good';
	my ($id) = $request =~ /"guest-sync-delimited".*?"id":\s*(\d+)/;
	my $sync = defined $id ? "\xff{\"return\":$id}\n" : undef;
	return put($sync // '{"return":{}}' . "\n", 1) if $mode eq 'bytes' && defined $sync;
	return put_often('x', 4_000_000, 1) if $mode eq 'bytes';
	return put_often('x', 100_000_000) if $mode eq 'endless';
	return put_often("{\"return\":1}\n", 3_000_000) if $mode eq 'flood';
	if ($mode eq 'order') {
		# Each gets what the one before should have had, and then some.
		my $now = $sync // '{"return":{"pid":1,"exited":true,"exitcode":0,"out-data":{"length":4000000000}}}' . "\n";
		put($before . "\n" . $now . $now);
		$before = '{"error":{"desc":"' . '\u001b[2J' x 200 . '"}}';
		return;
	}
	return put($sync) if defined $sync;
	return put('{"return":[') && put_often('[],', 15_000_000) && put("[]]}\n") if $mode eq 'lists';
	return put_often('[', 3_000_000) && put("\n") if $mode eq 'nested';
	return put('{"error":{"desc":"') && put_often('y', 10_000_000) && put("\"}}\n") if $mode eq 'words';
	return put("{\"return\":{}}\n");
}

for (;;) {
	become_the_real_one() if mode() eq 'good';
	my $read = sysread $port, my $bytes, 65536;
	if (!$read) {
		select undef, undef, undef, 0.05;
		next;
	}
	$held .= $bytes;
	while ($held =~ s/^([^\n]*)\n//) { answer($1) }
}
