# file-tasks: reads and changes files of the guest for the exec supervisor (exec-supervisor.pl, which follows in the
# same text). Each task is a process of its own. It receives and sends frames of a length (4 bytes), a type (1 byte)
# and a payload; src/protocol/file-stream.ts has the types.
#
# Paths are resolved one component at a time, from an open folder, so nobody can exchange a component that was checked.
# A link is followed if root owns it, or if only root may write to its folder. A new file has no name until it is
# complete and synced.
{
package Files;

my ($OPENED, $DATA, $ENTRY, $DONE, $FAILED, $WORKING) = (1 .. 6);
my ($RANGE, $CONTENT, $COMMIT) = (1 .. 3);
my ($SYS_close, $SYS_flock, $SYS_fsync, $SYS_fchmod, $SYS_fchown) = (3, 73, 74, 91, 93);
my ($SYS_openat, $SYS_mkdirat, $SYS_newfstatat, $SYS_unlinkat, $SYS_linkat, $SYS_readlinkat) = (257, 258, 262, 263, 265, 267);
my ($SYS_sync_file_range, $SYS_prlimit64, $SYS_renameat2) = (277, 302, 316);
my ($O_WRONLY, $O_CREAT, $O_EXCL, $O_NONBLOCK, $O_DIRECTORY) = (1, 0100, 0200, 04000, 0200000);
my ($O_NOFOLLOW, $O_PATH, $O_TMPFILE) = (0400000, 010000000, 020200000);
my ($AT_FDCWD, $AT_REMOVEDIR, $AT_SYMLINK_FOLLOW, $AT_EMPTY_PATH) = (-100, 0x200, 0x400, 0x1000);
my ($RLIMIT_NOFILE, $LOCK_EX, $SYNC_FILE_RANGE_WRITE) = (7, 2, 2);
my ($EINTR, $ENOENT, $EEXIST, $ENOTDIR, $EISDIR) = (4, 2, 17, 20, 21);
my ($S_IFMT, $S_IFDIR, $S_IFREG, $S_IFLNK) = (0170000, 0040000, 0100000, 0120000);
my %TYPES = ($S_IFDIR => 'directory', $S_IFREG => 'file', $S_IFLNK => 'symlink');
my ($CHUNK, $LINKS_MAX) = (64 * 1024, 40);
# Of written bytes, after which the disk begins to write: the end then waits for few.
my $WRITE_BACK = 16 * 1024 * 1024;
my $LOCK = '/run/berth-files.lock';

my ($heard, $removed, $unfinished, %names) = ('', 0);

# The words of the call: what it does, then its arguments.
sub run {
	my ($verb, @words) = @_;
	umask 0;
	# A name that a file has before it is complete goes with us.
	$SIG{$_} = sub { discard(); exit 1 } for qw(TERM PIPE);
	my $limits = pack 'QQ', 0, 0;
	syscall $SYS_prlimit64, 0, $RLIMIT_NOFILE, 0, $limits;
	$limits = pack 'QQ', (unpack 'QQ', $limits)[1, 1];
	syscall $SYS_prlimit64, 0, $RLIMIT_NOFILE, $limits, 0;
	my %verbs = (read => \&read_file, write => \&write_file, list => \&list, remove => \&remove, move => \&move,
		directory => \&make_directory);
	return if eval { $verbs{$verb}->(@words); 1 };
	my $why = $@;
	discard();
	$why = ['failed', "$why"] if !ref $why;
	say_frame($FAILED, join "\0", @$why);
}

sub fail { die [@_] }
sub fail_with { my ($number) = @_; local $! = $number; fail($number, "$!") }
sub must { my ($result) = @_; fail($! + 0, "$!") if $result < 0; return $result }

sub say_frame {
	my ($type, $payload) = @_;
	put_all(pack('NC', length $payload, $type) . $payload);
}

sub put_all {
	my $at = 0;
	while ($at < length $_[0]) {
		my $count = syswrite STDOUT, $_[0], length($_[0]) - $at, $at;
		next if !defined $count && $! == $EINTR;
		if (!$count) { discard(); exit 1 }
		$at += $count;
	}
}

# The next frame from the host; nothing: it has left.
sub hear {
	while (length $heard < 5 || length $heard < 5 + unpack 'N', $heard) {
		my $count = sysread STDIN, $heard, 4 * $CHUNK, length $heard;
		return if !$count;
	}
	my ($length, $type) = unpack 'NC', $heard;
	my $payload = substr $heard, 5, $length;
	substr $heard, 0, 5 + $length, '';
	return ($type, $payload);
}

sub open_at {
	my ($folder, $name, $flags, $mode) = @_;
	my $path = "$name";
	return syscall $SYS_openat, $folder, $path, $flags | 02000000, $mode // 0;
}
sub close_fd { syscall $SYS_close, $_ for @_ }

sub stat_of {
	my ($fd) = @_;
	my ($buffer, $empty) = ("\0" x 144, '');
	must(syscall $SYS_newfstatat, $fd, $empty, $buffer, $AT_EMPTY_PATH);
	my %is;
	@is{qw(dev ino links mode uid gid pad rdev size block blocks atime atime_ns mtime mtime_ns ctime ctime_ns)} =
		unpack 'Q3L4Qq9', $buffer;
	$is{format} = $is{mode} & $S_IFMT;
	return \%is;
}

# Changes with the contents, the mode and the owner.
sub version_of { join '-', map { sprintf '%x', $_ } @{ $_[0] }{qw(ino size mtime mtime_ns ctime ctime_ns)} }

sub fields {
	my ($is, $name) = @_;
	my $user = $names{ $is->{uid} } //= getpwuid($is->{uid}) // $is->{uid};
	return join "\0", $TYPES{ $is->{format} } // 'other', $is->{size}, sprintf('%04o', $is->{mode} & 07777), $user,
		$is->{mtime}, $is->{mtime_ns}, version_of($is), $name;
}

# What a path names: its folder, its last name, the open object with its status, or nothing and the names that are missing. The last
# name is undefined where a path ends in `..`, or is that of the root. Follows a link at the end if told to.
sub walk {
	my ($path, $follows) = @_;
	my $folder = must(open_at($AT_FDCWD, '/', $O_PATH | $O_DIRECTORY));
	my @rest = grep { $_ ne '' && $_ ne '.' } split m{/}, $path;
	my ($links, $name) = (0);
	while (@rest) {
		$name = shift @rest;
		my $fd = open_at($folder, $name, $O_PATH | $O_NOFOLLOW);
		if ($fd < 0) {
			fail_with($! + 0) if $! != $ENOENT || grep { $_ eq '..' } @rest;
			return ($folder, $name, undef, undef, @rest);
		}
		my $is = stat_of($fd);
		if ($is->{format} == $S_IFLNK && (@rest || $follows)) {
			fail('link', $name) if $is->{uid} != 0 && others_write(stat_of($folder));
			fail('links') if ++$links > $LINKS_MAX;
			my $target = target_of($fd);
			close_fd($fd);
			if ($target =~ m{^/}) {
				close_fd($folder);
				$folder = must(open_at($AT_FDCWD, '/', $O_PATH | $O_DIRECTORY));
			}
			unshift @rest, grep { $_ ne '' && $_ ne '.' } split m{/}, $target;
			next;
		}
		return ($folder, $name, $fd, $is) if !@rest && $name ne '..';
		fail_with($ENOTDIR) if $is->{format} != $S_IFDIR;
		close_fd($folder);
		$folder = $fd;
	}
	return ($folder, undef, $folder, stat_of($folder));
}

sub others_write { my ($is) = @_; return $is->{uid} != 0 || $is->{mode} & 0022 }

sub target_of {
	my ($fd) = @_;
	my ($target, $empty) = ("\0" x 4096, '');
	return substr $target, 0, must(syscall $SYS_readlinkat, $fd, $empty, $target, length $target);
}

# The missing folders of a path, below `folder`; the last one.
sub make_folders {
	my ($folder, $user, @missing) = @_;
	for my $name (@missing) { ($folder) = make_folder($folder, $name, 0755, $user) }
	return $folder;
}

# The folder, and whether it is new. One that somebody made meanwhile will do.
sub make_folder {
	my ($folder, $name, $mode, $user) = @_;
	my $path = "$name";
	my $is_new = syscall($SYS_mkdirat, $folder, $path, $mode) == 0;
	must(-1) if !$is_new && $! != $EEXIST;
	my $made = must(open_at($folder, $name, $O_DIRECTORY | $O_NOFOLLOW));
	if ($is_new) {
		must(syscall $SYS_fchown, $made, @$user) if $user;
		must(syscall $SYS_fchmod, $made, $mode);
		sync_folder($folder);
	}
	return ($made, $is_new);
}

sub sync_folder {
	my ($folder) = @_;
	my $fd = must(open_at($AT_FDCWD, "/proc/self/fd/$folder", $O_DIRECTORY));
	must(syscall $SYS_fsync, $fd);
	close_fd($fd);
}

# uid and gid; nothing where none is named.
sub owner_of {
	my ($name) = @_;
	return if $name eq '';
	my @entry = $name =~ /^\d+$/ ? getpwuid $name : getpwnam $name;
	fail('user') if !@entry;
	return [@entry[2, 3]];
}

sub need_file {
	my ($is) = @_;
	fail_with($EISDIR) if $is->{format} == $S_IFDIR;
	fail('not_regular') if $is->{format} != $S_IFREG;
}

sub read_file {
	my ($path) = @_;
	my (undef, $name, $found, $is) = walk($path, 1);
	fail_with($ENOENT) if !defined $found;
	need_file($is);
	my $fd = must(open_at($AT_FDCWD, "/proc/self/fd/$found", $O_NONBLOCK));
	open(my $file, '<&=', $fd) or must(-1);
	$is = stat_of($fd);
	my $begin = '';
	if ($is->{size} < $CHUNK) {
		# A file of /proc has another size than it says.
		while (length $begin < $CHUNK) {
			my $count = sysread $file, $begin, $CHUNK - length $begin, length $begin;
			must(-1) if !defined $count;
			last if !$count;
		}
		$is->{size} = length $begin < $CHUNK ? length $begin : -1;
	}
	say_frame($OPENED, fields($is, $name));
	my ($type, $range) = hear() or return;
	my ($offset, $left) = unpack 'Q>Q>', $range;
	if ($is->{size} >= 0 && $is->{size} < $CHUNK) { say_frame($DATA, substr $begin, $offset, $left) }
	else { send_file($file, $is->{size} < 0 ? $begin : '', $offset, $left) }
	say_frame($DONE, '');
}

# `begin`: what was read of a file whose size nobody knows.
sub send_file {
	my ($file, $begin, $offset, $left) = @_;
	if ($begin ne '') { say_frame($DATA, $begin) }
	else { sysseek $file, $offset, 0 or must(-1) }
	while ($begin ne '' || $left > 0) {
		my $data = "\0" x 5;
		my $count = sysread $file, $data, $begin ne '' || $left > $CHUNK ? $CHUNK : $left, 5;
		must(-1) if !defined $count;
		last if !$count && $begin ne '';
		fail('shrunk') if !$count;
		substr $data, 0, 5, pack 'NC', $count, $DATA;
		put_all($data);
		$left -= $count;
	}
}

# In `folder`, without a name where the file system knows such files.
sub open_new {
	my ($folder) = @_;
	my $fd = open_at($folder, '.', $O_WRONLY | $O_TMPFILE, 0600);
	return $fd if $fd >= 0;
	my $name = new_name();
	$fd = must(open_at($folder, $name, $O_WRONLY | $O_CREAT | $O_EXCL | $O_NOFOLLOW, 0600));
	$unfinished = [$folder, $name];
	return $fd;
}

sub new_name {
	open(my $random, '<', '/dev/urandom') or must(-1);
	sysread $random, my $bytes, 12;
	return '.berth-' . unpack 'H*', $bytes;
}

sub discard {
	return if !$unfinished;
	my ($folder, $name) = @$unfinished;
	$unfinished = undef;
	syscall $SYS_unlinkat, $folder, $name, 0;
}

sub write_file {
	my ($path, $mode, $user) = @_;
	my ($folder, $name, $found, $is, @missing) = walk($path, 1);
	fail_with($EISDIR) if !defined $name;
	need_file($is) if $is;
	my $owner = owner_of($user);
	my $fd = open_new($folder);
	open(my $file, '>&=', $fd) or must(-1);
	say_frame($OPENED, $is ? fields($is, $name) : '');
	my $written = 0;
	while (my ($type, $payload) = hear()) {
		if ($type == $COMMIT) {
			my ($now, $created) = commit($fd, $folder, [$name, @missing], $owner, $mode, $payload);
			return say_frame($DONE, "$created\0" . fields($now, (@missing ? $missing[-1] : $name)));
		}
		my $at = 0;
		while ($at < length $payload) { $at += must(syswrite($file, $payload, length($payload) - $at, $at) // -1) }
		my $before = int($written / $WRITE_BACK);
		$written += $at;
		next if int($written / $WRITE_BACK) == $before;
		syscall $SYS_sync_file_range, $fd, 0, 0, $SYNC_FILE_RANGE_WRITE;
	}
	discard();
}

# Gives the complete file its name. `wanted`: the version of the file that it replaces, `-`: none, or nothing: any.
sub commit {
	my ($fd, $folder, $names, $owner, $mode, $wanted) = @_;
	my ($name, @missing) = reverse @$names;
	my $target = make_folders($folder, $owner, reverse @missing);
	# One at a time: what is compared here is replaced here.
	my $lock = must(open_at($AT_FDCWD, $LOCK, $O_WRONLY | $O_CREAT | $O_NOFOLLOW, 0600));
	my $old = status_in($target, $name);
	need_file($old) if $old && $old->{format} != $S_IFLNK;
	set_attributes($fd, $old, $owner, $mode);
	must(syscall $SYS_fsync, $fd);
	must(syscall $SYS_flock, $lock, $LOCK_EX);
	$old = status_in($target, $name);
	fail('changed') if $wanted ne '' && $wanted ne ($old ? version_of($old) : '-');
	if ($unfinished || $old || $wanted ne '-') {
		if (!$unfinished) {
			$unfinished = [$folder, new_name()];
			link_to($fd, @$unfinished);
		}
		my ($path, $new) = ($unfinished->[1], "$name");
		must(syscall $SYS_renameat2, $folder, $path, $target, $new, $wanted eq '-' ? 1 : 0);
		$unfinished = undef;
	} else {
		link_to($fd, $target, $name);
	}
	sync_folder($target);
	return (stat_of($fd), $old ? 0 : 1);
}

sub link_to {
	my ($fd, $folder, $name) = @_;
	my ($from, $to) = ("/proc/self/fd/$fd", "$name");
	return if syscall($SYS_linkat, $AT_FDCWD, $from, $folder, $to, $AT_SYMLINK_FOLLOW) == 0;
	fail('changed') if $! == $EEXIST;
	must(-1);
}

sub status_in {
	my ($folder, $name) = @_;
	my $fd = open_at($folder, $name, $O_PATH | $O_NOFOLLOW);
	return undef if $fd < 0 && $! == $ENOENT;
	my $is = stat_of(must($fd));
	close_fd($fd);
	return $is;
}

# As given, else as those of the file that it replaces.
sub set_attributes {
	my ($fd, $old, $owner, $mode) = @_;
	$old = undef if $old && $old->{format} != $S_IFREG;
	my $who = $owner // ($old && [@$old{qw(uid gid)}]);
	must(syscall $SYS_fchown, $fd, @$who) if $who;
	must(syscall $SYS_fchmod, $fd, $mode ne '' ? oct $mode : $old ? $old->{mode} & 07777 : 0644);
}

sub list {
	my ($path, $after, $count) = @_;
	my (undef, undef, $found, $is) = walk($path, 1);
	fail_with($ENOENT) if !defined $found;
	fail_with($ENOTDIR) if $is->{format} != $S_IFDIR;
	opendir(my $folder, "/proc/self/fd/$found") or must(-1);
	my @found = sort grep { $_ ne '.' && $_ ne '..' && $_ gt $after } readdir $folder;
	for my $name (@found) {
		last if $count-- <= 0;
		my $of = status_in($found, $name) or next;
		say_frame($ENTRY, fields($of, $name));
	}
	say_frame($DONE, '');
}

sub remove {
	my ($path, $recursive) = @_;
	my ($folder, $name, $found, $is) = walk($path, 0);
	fail_with($ENOENT) if !defined $found;
	fail('no_name') if !defined $name;
	if ($recursive && $is->{format} == $S_IFDIR) {
		my $open = must(open_at($folder, $name, $O_DIRECTORY | $O_NOFOLLOW));
		empty($open, stat_of($open)->{dev});
		close_fd($open);
	}
	my $last = "$name";
	must(syscall $SYS_unlinkat, $folder, $last, $is->{format} == $S_IFDIR ? $AT_REMOVEDIR : 0);
	sync_folder($folder);
	say_frame($DONE, '');
}

# Everything in a folder, but not what is mounted there.
sub empty {
	my ($folder, $device) = @_;
	opendir(my $list, "/proc/self/fd/$folder") or must(-1);
	my @names = grep { $_ ne '.' && $_ ne '..' } readdir $list;
	closedir $list;
	for my $name (@names) {
		say_frame($WORKING, '') if ++$removed % 1000 == 0;
		my $path = "$name";
		next if syscall($SYS_unlinkat, $folder, $path, 0) == 0 || $! == $ENOENT;
		must(-1) if $! != $EISDIR;
		my $inner = must(open_at($folder, $name, $O_DIRECTORY | $O_NOFOLLOW));
		empty($inner, $device) if stat_of($inner)->{dev} == $device;
		close_fd($inner);
		must(syscall $SYS_unlinkat, $folder, $path, $AT_REMOVEDIR);
	}
}

sub move {
	my ($from, $to) = @_;
	my ($folder, $name, $found) = walk($from, 0);
	fail_with($ENOENT) if !defined $found;
	my ($new_folder, $new_name, undef, undef, @missing) = walk($to, 0);
	fail('no_name') if !defined $name || !defined $new_name;
	my ($last, @before) = reverse $new_name, @missing;
	my $target = make_folders($new_folder, undef, reverse @before);
	my ($old, $new) = ("$name", "$last");
	must(syscall $SYS_renameat2, $folder, $old, $target, $new, 0);
	sync_folder($_) for $folder, $target;
	say_frame($DONE, "0\0" . fields(status_in($target, $last), $last));
}

sub make_directory {
	my ($path, $mode, $user) = @_;
	my $owner = owner_of($user);
	my ($folder, $name, $found, $is, @missing) = walk($path, 1);
	my $created = 0;
	if (!defined $found) {
		my ($last, @before) = reverse $name, @missing;
		my $parent = make_folders($folder, $owner, reverse @before);
		($found, $created) = make_folder($parent, $last, $mode eq '' ? 0755 : oct $mode, $owner);
		$name = $last;
	}
	$is = stat_of($found);
	fail_with($EEXIST) if $is->{format} != $S_IFDIR;
	say_frame($DONE, ($created ? 1 : 0) . "\0" . fields($is, $name // ''));
}

}
