# user-command BUSYBOX NAME INLINE_BYTES REST_BYTES PROGRAM ARGUMENT…: the guest agent runs it as root. It execs the
# program in a new session, so the agent sees the program's exit code or signal. The output goes through two pipes: the
# first INLINE_BYTES of each to the agent, the next REST_BYTES into the files NAME.1 and NAME.2. The rest is drained,
# so the program is neither blocked nor ended by a closed pipe. The readers of the pipes hold the agent's ends, so for
# the agent the command ends once the program has ended and both pipes are drained. The first output, "begun", shows
# that the script got this far.
bb=$1 name=$2 inline=$3 rest=$4
shift 4
"$bb" mkfifo -m 600 "$name.out" "$name.err" || exit 1
# drain FD FILE: copies stdin to the agent's FD, then to FILE. Without room for the rest there is no FILE.
drain() {
	# dd prints "0+1 records in" if it reached the end.
	case "$("$bb" dd bs="$inline" count=1 iflag=fullblock 2>&1 >&"$1")" in
	0+*) return ;;
	1+*) (umask 077 && "$bb" dd bs="$rest" count=1 iflag=fullblock of="$2" 2> /dev/null) || "$bb" rm -f "$2" ;;
	esac
	"$bb" cat > /dev/null
}
echo begun
(
	exec 3>&1 4>&2
	{
		drain 3 "$name.1" < "$name.out"
		# The program has both pipes open, and no longer needs their names.
		"$bb" rm -f "$name.out" "$name.err" > /dev/null 2>&1 3>&- 4>&- &
	} &
	drain 4 "$name.2" < "$name.err" &
)
# Variables of this shell.
unset PWD OLDPWD SHLVL
# Placeholders of secrets; absent without any.
[ ! -r /run/berth/environment ] || . /run/berth/environment
exec /usr/bin/setsid "$@" > "$name.out" 2> "$name.err"
