# exec-supervisor: runs execs in the guest, as root, in a perl without modules. It talks to the host over the virtio
# port berth.execs. One process at a time can open that port, so there is one supervisor. It outlives the host's agent:
# an exec goes on while nobody reads, and the supervisor keeps its last output and its end until the host has stored
# them.
#
# Frames from the host stand between 0x7E bytes, with 0x7D as the escape (RFC 1662), so a frame that is cut off damages
# no other. Frames to the host have their length (4 bytes) in front; the first one follows the 16 bytes that the host's
# hello named. Every frame: length, type, exec, payload. src/host/execs/exec-channel.ts has the types.
my ($HELLO, $START, $TASK, $INPUT, $EOF, $RESIZE, $SIGNAL, $ACK, $WAIT, $FORGET, $PING) = qw(H S T I E R K A W F P);
my ($SYS_rt_sigprocmask, $SYS_dup2, $SYS_setsid, $SYS_clock_gettime, $SYS_signalfd4) = (14, 33, 112, 228, 289);
my ($TIOCSCTTY, $TIOCSWINSZ, $TIOCGPTN, $TIOCSPTLCK) = (0x540e, 0x5414, 0x80045430, 0x40045431);
my ($F_SETFL, $O_NONBLOCK, $F_SETPIPE_SZ, $SIGCHLD, $SIGKILL, $SIGTERM, $WNOHANG) = (4, 2048, 1031, 17, 9, 15, 1);
my ($EINTR, $EAGAIN, $ENOENT) = (4, 11, 2);
my $MIB = 1024 * 1024;
# Of one frame, and of all that wait to be written.
my ($CHUNK, $OUTBOX) = (60 * 1024, 256 * 1024);
# Of one exec: while the host reads, and kept while it does not. Of all execs: an eighth of the memory, this much at most.
my ($WINDOW, $KEPT, $KEPT_OF_ALL) = (2 * $MIB, 8 * $MIB, 64 * $MIB);
my $PIPE = 256 * 1024;
# A host that has said nothing for this long is away, ms.
my $AWAY = 10_000;
# And this long may an exec wait for its readers to come back, ms.
my $RETURN = 60_000;
my ($EXECS, $ORPHANS) = (64, 256);
my $PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

my (%execs, @orphans, $session, $heard_at, $signals, $old_oom);
my ($port, $inbox, $outbox, $synced, $hung_up) = (undef, '', '', 0, 0);

sub now_ms {
	my $time = "\0" x 16;
	syscall($SYS_clock_gettime, 1, $time);
	my ($seconds, $nanoseconds) = unpack 'qq', $time;
	return $seconds * 1000 + int($nanoseconds / 1_000_000);
}

sub read_file {
	my ($path) = @_;
	open(my $file, '<', $path) or return '';
	local $/;
	return scalar <$file>;
}

sub put {
	my ($path, $text) = @_;
	open(my $file, '>', $path) or return;
	syswrite $file, $text;
}

sub nonblocking { fcntl($_, $F_SETFL, $O_NONBLOCK) for @_ }

sub find_port {
	opendir(my $folder, '/sys/class/virtio-ports') or return undef;
	my ($name) = grep { read_file("/sys/class/virtio-ports/$_/name") eq "berth.execs\n" } readdir $folder;
	return defined $name ? "/dev/$name" : undef;
}

sub frame {
	my ($type, $id, $payload) = @_;
	return pack('N a1 a26', 27 + length $payload, $type, $id) . $payload;
}

sub reply { $outbox .= frame(@_) if $synced }

# A new host, or the same one again: everything that it has not acknowledged goes out again.
sub greet {
	my ($nonce) = @_;
	($outbox, $synced) = ($nonce, 1);
	reply('H', '', $session);
	# The host that asked for a task has left.
	end_task($_) for grep { $_->{is_task} } values %execs;
	for my $exec (values %execs) {
		unshift @{ $exec->{unsent} }, splice @{ $exec->{sent} };
		$exec->{end_sent} = 0;
		reply('L', $exec->{id}, pack 'Q>Q>CC', $exec->{base}, $exec->{received}, $exec->{eof}, $exec->{waits});
	}
	reply('Z', '', '');
}

sub handle {
	my ($type, $id, $payload) = unpack 'a1 a26 a*', shift;
	$heard_at = now_ms();
	return greet($payload) if $type eq $HELLO;
	return reply('P', '', '') if $type eq $PING;
	return start($id, $payload) if $type eq $START;
	return start_task($id, $payload) if $type eq $TASK;
	my $exec = $execs{$id} or return;
	if ($type eq $ACK) { acknowledge($exec, unpack 'Q>', $payload) }
	elsif ($type eq $INPUT) { take_input($exec, unpack 'Q> a*', $payload) }
	elsif ($type eq $EOF) { $exec->{eof} = 1; feed($exec) }
	elsif ($type eq $RESIZE) { resize($exec->{out}, unpack 'nn', $payload) if $exec->{tty} && $exec->{out} }
	elsif ($type eq $SIGNAL) { kill unpack('C', $payload), -$exec->{pid} if !$exec->{end} }
	elsif ($type eq $WAIT) { $exec->{waits} = unpack 'C', $payload }
	elsif ($type eq $FORGET) { delete $execs{$id} if $exec->{end} }
}

sub receive {
	# One read gets a page.
	my ($count, $before) = (1, length $inbox);
	while ($count && length($inbox) - $before < $MIB / 4) { $count = sysread $port, $inbox, 65536, length $inbox }
	if (length $inbox == $before) {
		$hung_up = 1 if defined $count || $! != $EINTR && $! != $EAGAIN;
		return;
	}
	$hung_up = 0;
	while ((my $end = index $inbox, "\x7e") >= 0) {
		my $frame = substr $inbox, 0, $end + 1, '';
		chop $frame;
		$frame =~ s/\x7d\x5e/\x7e/g;
		$frame =~ s/\x7d\x5d/\x7d/g;
		# One that was cut is shorter than it says.
		handle(substr $frame, 4) if length $frame >= 31 && unpack('N', $frame) == length($frame) - 4;
	}
	$inbox = '' if length $inbox > 4 * $MIB;
}

# Whom it runs as: uid, gid, groups, home, shell, name. Nothing: there is no such user.
sub find_user {
	my ($name) = @_;
	my @entry = $name =~ /^\d+$/ ? getpwuid $name : getpwnam $name or return;
	my @groups;
	setgrent;
	while (my @group = getgrent) { push @groups, $group[2] if grep { $_ eq $entry[0] } split / /, $group[3] }
	endgrent;
	return ($entry[2], $entry[3], \@groups, $entry[7], $entry[8], $entry[0]);
}

sub resize {
	my ($terminal, $columns, $rows) = @_;
	my $size = pack 'S4', $rows, $columns, 0, 0;
	ioctl $terminal, $TIOCSWINSZ, $size;
}

sub open_terminal {
	my ($columns, $rows) = @_;
	open(my $master, '+<', '/dev/ptmx') or return;
	my $number = "\0" x 4;
	ioctl $master, $TIOCSPTLCK, $number;
	ioctl $master, $TIOCGPTN, $number;
	resize($master, $columns, $rows);
	return ($master, '/dev/pts/' . unpack 'i', $number);
}

sub refuse { my ($id, $field, $issue) = @_; reply('N', $id, "$field\0$issue") }

sub new_exec {
	my ($id) = @_;
	return (id => $id, base => 0, total => 0, sent => [], unsent => [], held => 0,
		input => '', received => 0, taken => 0, eof => 0, waits => 0, end => undef, end_sent => 0);
}

# One of Files, in a process of its own, whose streams are those of an exec. It ends when its host leaves.
sub start_task {
	my ($id, $words) = @_;
	return refuse($id, 'busy', 'too many execs run in this VM') if $execs{$id} || keys %execs >= $EXECS;
	my %task = (new_exec($id), is_task => 1);
	pipe(my $in, $task{in}) && pipe($task{out}, my $out) or return refuse($id, 'busy', "no pipe: $!");
	fcntl($_, $F_SETPIPE_SZ, $PIPE) for $in, $out;
	$task{pid} = fork // return refuse($id, 'busy', "no process: $!");
	if ($task{pid} == 0) {
		eval {
			syscall($SYS_setsid);
			begin_process($in, $out);
			(%task, %execs, @orphans) = ();
			undef $_ for $in, $out, $port, $signals;
			Files::run(split /\0/, $words, -1);
		};
		exit 0;
	}
	nonblocking(@task{'in', 'out'});
	$execs{$id} = \%task;
	reply('S', $id, '');
}

sub end_task {
	my ($task) = @_;
	kill $SIGTERM, -$task->{pid} if !$task->{end};
	delete $execs{ $task->{id} };
}

# The words: user, cwd, terminal (columns, rows, or 0 0), stdin, timeout in ms or 0, number of arguments, arguments, environment.
sub start {
	my ($id, $words) = @_;
	return reply('S', $id, '') if $execs{$id};
	my ($user, $cwd, $columns, $rows, $stdin, $timeout, $count, @rest) = split /\0/, $words, -1;
	my @command = splice @rest, 0, $count;
	return refuse($id, 'busy', 'too many execs run in this VM') if keys %execs >= $EXECS;
	my @user = find_user($user) or return refuse($id, 'user', 'is not a user of the guest');
	my %exec = (new_exec($id), tty => $columns > 0);
	my ($terminal, $in, $out, $err);
	if ($exec{tty}) {
		($exec{out}, $terminal) = open_terminal($columns, $rows) or return refuse($id, 'busy', 'the guest has no terminal left');
		chown $user[0], -1, $terminal;
		$exec{in} = $exec{out};
	} else {
		pipe($exec{out}, $out) && pipe($exec{err}, $err) && (!$stdin || pipe($in, $exec{in})) or return refuse($id, 'busy', "no pipe: $!");
		fcntl($_, $F_SETPIPE_SZ, $PIPE) for $exec{out}, $exec{err};
	}
	pipe(my $hears, my $says) or return refuse($id, 'busy', "no pipe: $!");
	my $pid = fork;
	return refuse($id, 'busy', "no process: $!") if !defined $pid;
	if ($pid == 0) {
		eval { become($says, $terminal, [$in, $out, $err], \@user, $cwd, \@command, \@rest) };
		exit 1;
	}
	close $_ for grep { defined } $in, $out, $err, $says;
	sysread $hears, my $said, 4096;
	if ($said !~ s/^ok//) {
		waitpid $pid, 0;
		return refuse($id, split(/\0/, $said, 2)) if $said ne '';
		return refuse($id, 'busy', 'the process ended before it began');
	}
	$exec{pid} = $pid;
	nonblocking(grep { defined } @exec{'out', 'err', 'in'});
	$exec{deadline} = now_ms() + $timeout if $timeout;
	$execs{$id} = \%exec;
	reply('S', $id, '');
}

# What a child is before it does its work.
sub begin_process {
	my @files = @_;
	my $no_signals = "\0" x 8;
	syscall($SYS_rt_sigprocmask, 2, $no_signals, 0, 8);
	# A shell has started us in the background, without interrupts.
	$SIG{$_} = 'DEFAULT' for qw(HUP INT QUIT PIPE TERM);
	put('/proc/self/oom_score_adj', $old_oom);
	open(my $nothing, '<', '/dev/null');
	syscall($SYS_dup2, fileno($files[$_] // $nothing), $_) for 0 .. 2;
}

# The child, until it is the command.
sub become {
	my ($says, $terminal, $files, $user, $cwd, $command, $environment) = @_;
	my ($uid, $gid, $groups, $home, $shell, $name) = @$user;
	my $fail = sub { syswrite $says, join "\0", @_; exit 1 };
	syscall($SYS_setsid);
	if (defined $terminal) {
		open(my $slave, '+<', $terminal) or $fail->('busy', "no terminal: $!");
		ioctl $slave, $TIOCSCTTY, 0;
		$files = [$slave, $slave, $slave];
	}
	begin_process(@$files);
	# Placeholders of secrets; absent without any. Only root reads them here.
	my %secrets = read_file('/run/berth/environment') =~ /^export ([A-Z0-9_]+)=(.*)$/mg;
	if ($uid != 0 || $name ne 'root') {
		$( = $gid;
		$) = "$gid $gid @$groups";
		($<, $>) = ($uid, $uid);
		$fail->('user', "cannot be used: $!") if $> != $uid;
	}
	chdir $cwd or $fail->('cwd', "$!");
	my %given = map { /^([^=]+)=(.*)\z/s ? ($1, $2) : () } @$environment;
	%ENV = (PATH => $PATH, HOME => $home, USER => $name, LOGNAME => $name, SHELL => $shell eq '' ? '/bin/sh' : $shell,
		(defined $terminal ? (TERM => 'xterm-256color') : ()), %secrets, %given);
	syswrite $says, 'ok';
	close $says;
	exec { $command->[0] } @$command;
	my $status = $! == $ENOENT ? 127 : 126;
	syswrite STDERR, "berth: $command->[0]: $!\n";
	exit $status;
}

sub hold {
	my ($exec, $stream, $data) = @_;
	my $last = $exec->{unsent}[-1];
	if ($last && $last->[1] == $stream && length($last->[2]) + length($data) <= $CHUNK) { $last->[2] .= $data }
	else { push @{ $exec->{unsent} }, [$exec->{total}, $stream, $data] }
	$exec->{total} += length $data;
	$exec->{held} += length $data;
}

sub drop_first {
	my ($exec) = @_;
	my $gone = shift @{ $exec->{sent} } // shift @{ $exec->{unsent} };
	$exec->{held} -= length $gone->[2];
	$exec->{base} = $gone->[0] + length $gone->[2];
}

sub acknowledge {
	my ($exec, $offset) = @_;
	drop_first($exec) while @{ $exec->{sent} } && $exec->{sent}[0][0] + length($exec->{sent}[0][2]) <= $offset;
}

sub held_of_all {
	my $held = 0;
	$held += $_->{held} for grep { !$_->{is_task} } values %execs;
	return $held;
}

# While the host is away, it waits for its readers: what it prints beyond the bound stays in its pipe.
sub waits_for_readers { $_[0]{waits} && now_ms() - $heard_at < $RETURN }

# Else an exec runs on while the host is away: its oldest output goes.
sub bound {
	my ($exec) = @_;
	return if $exec->{is_task} || waits_for_readers($exec);
	drop_first($exec) while $exec->{held} > $KEPT;
	my $held = held_of_all();
	while ($held > $KEPT_OF_ALL) {
		my ($most) = sort { $b->{held} <=> $a->{held} } grep { !$_->{is_task} && !waits_for_readers($_) } values %execs;
		last if !$most || !$most->{held};
		my $before = $most->{held};
		drop_first($most);
		$held -= $before - $most->{held};
	}
}

# False: nothing is there now. At its end the pipe is closed.
sub read_output {
	my ($exec, $name) = @_;
	my $count = sysread $exec->{$name}, my $data, $CHUNK;
	if ($count) {
		hold($exec, $name eq 'err' ? 2 : 1, $data);
		return 1;
	}
	return 0 if !defined $count && ($! == $EAGAIN || $! == $EINTR);
	delete $exec->{in} if $exec->{tty};
	delete $exec->{$name};
	return 0;
}

sub take_input {
	my ($exec, $offset, $data) = @_;
	# What came before this host's hello, or twice.
	return if $offset != $exec->{received} || length($exec->{input}) > $MIB;
	$exec->{received} += length $data;
	$exec->{input} .= $data;
	feed($exec);
}

sub feed {
	my ($exec) = @_;
	my $before = $exec->{taken};
	while ($exec->{in} && $exec->{input} ne '') {
		my $count = syswrite $exec->{in}, $exec->{input};
		if (defined $count) { substr $exec->{input}, 0, $count, ''; $exec->{taken} += $count; next }
		last if $! == $EAGAIN;
		delete $exec->{in} if $! != $EINTR;
	}
	# Nobody reads it any more.
	if (!$exec->{in}) { $exec->{taken} += length $exec->{input}; $exec->{input} = '' }
	if ($exec->{eof} && $exec->{input} eq '' && $exec->{in}) {
		if ($exec->{tty}) { syswrite $exec->{in}, "\x04" if !$exec->{eof_typed}++ }
		else { delete $exec->{in} }
	}
	reply('W', $exec->{id}, pack 'Q>', $exec->{taken}) if $exec->{taken} != $before;
}

# It ends with its first process. What that has written is read; a child that still holds the pipe is neither blocked nor ended.
sub reap {
	sysread $signals, my $read, 128 * 16;
	while ((my $pid = waitpid -1, $WNOHANG) > 0) {
		my $status = $?;
		my ($exec) = grep { $_->{pid} == $pid && !$_->{end} } values %execs or next;
		for my $name ('out', 'err') {
			my $before = $exec->{total};
			1 while $exec->{$name} && $exec->{total} - $before < $MIB && read_output($exec, $name);
			push @orphans, $exec->{$name} if $exec->{$name} && !$exec->{tty};
			delete $exec->{$name};
		}
		shift @orphans while @orphans > $ORPHANS;
		delete $exec->{in};
		feed($exec);
		my $signal = $status & 127;
		$exec->{end} = [$signal ? 1 : 0, $signal || $status >> 8, $exec->{timed_out} ? 1 : 0];
		$exec->{ended_at} = now_ms();
	}
}

sub fill_outbox {
	return if !$synced;
	for my $exec (values %execs) {
		while (length $outbox < $OUTBOX && @{ $exec->{unsent} }) {
			my $chunk = shift @{ $exec->{unsent} };
			push @{ $exec->{sent} }, $chunk;
			$outbox .= frame('O', $exec->{id}, pack('Q>C', $chunk->[0], $chunk->[1]) . $chunk->[2]);
			last if keys %execs > 1;
		}
		next if !$exec->{end} || $exec->{end_sent} || @{ $exec->{unsent} };
		my $age = now_ms() - $exec->{ended_at};
		reply('X', $exec->{id}, pack 'C3 Q>Q>', @{ $exec->{end} }, $exec->{total}, $age);
		$exec->{end_sent} = 1;
	}
}

sub send_outbox {
	fill_outbox();
	return if $outbox eq '';
	my $count = syswrite $port, $outbox;
	substr $outbox, 0, $count, '' if $count;
}

# The milliseconds until the next deadline; ends what is past its own.
sub enforce_timeouts {
	my ($next, $now) = (60_000, now_ms());
	for my $exec (values %execs) {
		next if $exec->{end} || !$exec->{deadline} || $exec->{timed_out};
		my $left = $exec->{deadline} - $now;
		if ($left <= 0) { $exec->{timed_out} = 1; kill $SIGKILL, -$exec->{pid} }
		elsif ($left < $next) { $next = $left }
	}
	return $next;
}

sub serve {
	my $wait = enforce_timeouts();
	my $present = $synced && !$hung_up && now_ms() - $heard_at < $AWAY;
	my ($reads, $writes, @readers, @writers) = ('', '');
	my $watch = sub { vec($_[0], fileno $_[1], 1) = 1 };
	$watch->($reads, $signals);
	# A port whose host is away is always readable.
	if ($hung_up) { $wait = 250 if $wait > 250 } else { $watch->($reads, $port) }
	$watch->($reads, $_) for @orphans;
	my $sends = $outbox ne '';
	for my $exec (values %execs) {
		$sends = 1 if @{ $exec->{unsent} } || $exec->{end} && !$exec->{end_sent};
		$watch->($writes, $exec->{in}) if $exec->{in} && $exec->{input} ne '';
		next if ($present || $exec->{is_task}) && $exec->{held} >= $WINDOW;
		$wait = 1000 if $exec->{held} >= $WINDOW && $wait > 1000;
		next if !$present && waits_for_readers($exec) && ($exec->{held} >= $KEPT || held_of_all() >= $KEPT_OF_ALL);
		$watch->($reads, $_) for grep { defined } @$exec{'out', 'err'};
	}
	# A window that is full opens by itself once the host is away.
	$wait = 1000 if $present && $wait > 1000 && grep { $_->{held} >= $WINDOW } values %execs;
	$watch->($writes, $port) if $sends && $synced && !$hung_up;
	return if select($reads, $writes, undef, $wait / 1000) < 0;
	my $ready = sub { defined $_[1] && vec $_[0], fileno $_[1], 1 };
	for my $exec (values %execs) {
		for my $name ('out', 'err') { read_output($exec, $name) if $ready->($reads, $exec->{$name}) }
		feed($exec) if $ready->($writes, $exec->{in});
		bound($exec) if $exec->{held} > $WINDOW + $MIB;
	}
	@orphans = grep { !$ready->($reads, $_) || sysread $_, my $unread, $CHUNK } @orphans;
	reap() if $ready->($reads, $signals);
	receive() if $hung_up || $ready->($reads, $port);
	send_outbox() if !$hung_up;
}

$SIG{PIPE} = $SIG{HUP} = 'IGNORE';
umask 022;
my $path = find_port() or exit 1;
# It has one reader: a second supervisor ends here.
open($port, '+<', $path) or exit 2;
nonblocking($port);
# What has ended with an earlier supervisor of this boot has not ended with the boot.
($session = read_file('/proc/sys/kernel/random/boot_id')) =~ tr/0-9a-f//cd;
$session .= unpack 'H*', do { open(my $random, '<', '/dev/urandom'); sysread $random, my $bytes, 16; $bytes };
$KEPT_OF_ALL = $1 * 128 if read_file('/proc/meminfo') =~ /^MemTotal: +(\d+) kB/ && $1 * 128 < $KEPT_OF_ALL;
$old_oom = read_file('/proc/self/oom_score_adj');
put('/proc/self/oom_score_adj', '-900');
my $children = pack 'Q', 1 << ($SIGCHLD - 1);
syscall($SYS_rt_sigprocmask, 0, $children, 0, 8);
my $number = syscall($SYS_signalfd4, -1, $children, 8, $O_NONBLOCK | 02000000);
open($signals, '<&=', $number) or exit 3;
$heard_at = now_ms();
# A mistake here must not end what runs.
while (1) { eval { serve(); 1 } or select undef, undef, undef, 0.1 }
