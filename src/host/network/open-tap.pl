#!/usr/bin/perl
# Opens a TAP device in the network namespace that it runs in, sets the device up, and execs a program that holds it:
#
#   open-tap.pl NAME FD ADDRESSES RULES PROGRAM…
#
# ADDRESSES is for `ip -batch -`, RULES for `nft -f -`. PROGRAM gets the device as file descriptor FD. The device
# exists for as long as that descriptor is open.
use strict;
use warnings;
use POSIX ();

my ($TUNSETIFF, $IFF_TAP, $IFF_NO_PI, $IFF_VNET_HDR) = (0x400454ca, 0x0002, 0x1000, 0x4000);
my ($name, $fd, $addresses, $rules, @program) = @ARGV;

# Without close-on-exec.
$^F = 255;
open(my $tap, '+<', '/dev/net/tun') or die "/dev/net/tun: $!\n";
ioctl($tap, $TUNSETIFF, pack('Z16 S x22', $name, $IFF_TAP | $IFF_NO_PI | $IFF_VNET_HDR)) or die "the TAP device $name: $!\n";
feed($rules, 'nft', '-f', '-');
feed($addresses, 'ip', '-batch', '-');
if (fileno $tap != $fd) {
	POSIX::dup2(fileno $tap, $fd) or die "file descriptor $fd: $!\n";
	close $tap;
}
exec { $program[0] } @program or die "$program[0]: $!\n";

sub feed {
	my ($text, @command) = @_;
	open(my $input, '|-', @command) or die "$command[0]: $!\n";
	print $input $text;
	close $input or die "$command[0] failed for the TAP device $name\n";
}
