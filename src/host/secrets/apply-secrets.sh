# apply-secrets SEQUENCE CERTIFICATE: run in the guest by its agent, as root; the text of /run/berth/environment on stdin.
# With a certificate, the guest trusts it, and new sessions get that environment. With an empty one, neither. Exit code 4: a call
# with a higher sequence, which is printed, came first.
#
# Sessions that began earlier keep their environment, so the files on tmpfs that it names stay until the next boot. The copy of
# the certificate on the disk is written last, and removed last: it says that the disk's store of certificates has it.
bb=/usr/lib/berth/busybox
run=/run/berth
kept=/etc/berth-secrets-ca.pem
sequence=$1
certificate=$2
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# Where distributions look for certificates of the machine's owner, and the file that they make of all.
anchors='/usr/local/share/ca-certificates /etc/pki/ca-trust/source/anchors /etc/ca-certificates/trust-source/anchors /etc/pki/trust/anchors'
bundles='/etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem'
begin='# Berth secrets: begin' end='# Berth secrets: end'

bundle() {
	local file
	for file in $bundles; do
		[ ! -e "$file" ] || { echo "$file"; return; }
	done
}

# The distribution's own program, if it has one.
update_store() {
	if command -v update-ca-certificates > /dev/null; then
		update-ca-certificates > /dev/null 9>&-
	elif command -v update-ca-trust > /dev/null; then
		update-ca-trust > /dev/null 9>&-
	else
		return 1
	fi
}

distrust() {
	local folder file removed=
	for folder in $anchors; do
		[ ! -e "$folder/berth-secrets.crt" ] || { $bb rm -f "$folder/berth-secrets.crt"; removed=yes; }
	done
	[ -z "$removed" ] || update_store || true
	file=$(bundle)
	if [ -n "$file" ] && $bb grep -qF "$begin" "$file"; then $bb sed -i "/^$begin\$/,/^$end\$/d" "$file"; fi
}

trust() {
	local folder file
	for folder in $anchors; do
		[ -d "$folder" ] || continue
		$bb cp "$run/secrets-ca.pem" "$folder/berth-secrets.crt"
		! update_store || return 0
	done
	file=$(bundle)
	[ -z "$file" ] || { echo "$begin"; $bb cat "$run/secrets-ca.pem"; echo "$end"; } >> "$file"
}

umask 022
set -e
exec 9> "$run/secrets.lock"
flock 9
latest=0
# Empty if there was no room for it.
[ ! -e "$run/secrets.sequence" ] || read -r latest < "$run/secrets.sequence" || latest=0
if [ "$sequence" -le "$latest" ]; then echo "$latest"; exit 4; fi
echo "$sequence" > "$run/secrets.sequence"

if [ -z "$certificate" ]; then
	$bb rm -f "$run/environment"
	[ ! -e "$kept" ] || { distrust; $bb rm -f "$kept"; }
	exit 0
fi

echo "$certificate" > "$run/secrets-ca.pem.new"
$bb mv -f "$run/secrets-ca.pem.new" "$run/secrets-ca.pem"
file=$(bundle)
# Without one, ours is all that there is.
$bb ln -sfn "${file:-$run/secrets-ca.pem}" "$run/ca-bundle.pem"
$bb cat > "$run/environment.new"
$bb mv -f "$run/environment.new" "$run/environment"
if ! $bb cmp -s "$run/secrets-ca.pem" "$kept"; then
	[ ! -e "$kept" ] || distrust
	trust
	$bb cp "$run/secrets-ca.pem" "$kept.new"
	$bb mv -f "$kept.new" "$kept"
fi
