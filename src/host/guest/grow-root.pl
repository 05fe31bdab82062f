# grow-root BYTES: the guest agent runs it as root. It waits until the kernel sees the disk's new size, and grows the
# root file system to it, as the initramfs does at a boot. It exits with 0 once the file system has that size. It needs
# no perl module.
use strict;

my ($wanted) = @ARGV;
my ($SYS_mount, $MS_REMOUNT, $EXT4_IOC_RESIZE_FS) = (165, 32, 0x40086610);
my %FLAG = (nosuid => 2, nodev => 4, noexec => 8, sync => 16, noatime => 1024, nodiratime => 2048, relatime => 1 << 21);

sub read_file {
	my ($path) = @_;
	open(my $file, '<', $path) or die "$path: $!\n";
	local $/;
	return <$file> // '';
}

# Of the root file system: blocks, and the logarithm of their size in KiB.
sub superblock {
	open(my $disk, '<', '/dev/vda') or die "/dev/vda: $!\n";
	sysseek $disk, 1024, 0 and sysread($disk, my $block, 28) == 28 or die "/dev/vda: $!\n";
	return unpack 'x4 V x16 V', $block;
}

sub sectors { return read_file('/sys/class/block/vda/size') + 0 }

my ($options) = map { (split ' ')[3] } grep { / \/ ext4 / } split /\n/, read_file('/proc/self/mounts');
die "the root file system is no ext4\n" if !defined $options;
die "the root file system is read-only\n" if $options =~ /(^|,)ro(,|$)/;
for (my $tries = 0; 512 * sectors() < $wanted; $tries++) {
	die "the kernel does not see the new size\n" if $tries == 300;
	select undef, undef, undef, 0.01;
}
my ($blocks, $log_kib) = superblock();
my $room = sectors() >> (1 + $log_kib);
exit 0 if $blocks >= $room;

# As at a boot: with noinit_itable the kernel would write zeroes over all new inode tables, which read as zeroes anyway.
my $flags = $MS_REMOUNT;
$flags |= $FLAG{$_} // 0 for split /,/, $options;
my $remount = sub { my ($option) = @_; syscall $SYS_mount, my $none = '', my $root = '/', my $type = '', $flags, $option };
open(my $root, '<', '/') or die "/: $!\n";
$remount->('init_itable');
my $failed = ioctl($root, $EXT4_IOC_RESIZE_FS, pack 'Q', $room) ? '' : "$!";
$remount->('noinit_itable');
die "growing failed: $failed\n" if $failed ne '';
