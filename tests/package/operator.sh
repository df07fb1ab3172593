# What an operator does on a fresh machine, with systemd as PID 1: one host that is control plane and
# (simulated) GPU host. Stops at the first thing that is not as it should be; its words are the log.
set -eux

main_pid() { systemctl show --value -p MainPID "$1"; }
hold() { cd /var/lib/bcd/sim/etc/cdi && stat -c '%n %i %Y' bcd-*.json && sha256sum bcd-*.json; }

# A host that has not joined: the daemon says so once, and is not started again and again.
if systemctl start bcd; then exit 1; fi
test "$(systemctl show --value -p ExecMainStatus bcd)" = 78
test "$(systemctl show --value -p ActiveState bcd)" = failed
test "$(systemctl show --value -p NRestarts bcd)" = 0

# The control plane.
mkdir -p /etc/bcd /root/.config/better-compute
cat >/etc/bcd/placer.toml <<'TOML'
database = "sqlite:////var/lib/bcd-placer/bcd.db"
[api]
names = ["localhost"]
[gateway]
names = ["localhost"]
TOML
runuser -u bcd-placer -- bcd-placer init
systemctl start bcd-placer
(umask 077
 runuser -u bcd-placer -- bcd-placer token --subject you --admin --tenant acme --for 1h >/root/token)
cat >/root/.config/better-compute/config.toml <<'TOML'
api = "localhost:7445"
ca_file = "/var/lib/bcd-placer/ca.pem"
token_file = "/root/token"
tenant = "acme"
TOML
better-compute pools create h100 --owner acme --region eu-1
better-compute quota set gpu 64 --tenant acme

# The host joins, and hands four GPUs over.
cat >/etc/bcd/bcd.toml <<'TOML'
[gateway]
address = "localhost:7443"
enroll_address = "localhost:7444"
[paths]
root = "/var/lib/bcd/sim"
TOML
echo 'BCD_ARGS="--sim dgx-h100"' >/etc/default/bcd
(umask 077; better-compute token join --pool h100 >/etc/bcd/join-token)
mkdir /etc/systemd/system/bcd.service.d
sed 's,/var/lib/bcd/cred,/var/lib/bcd/sim/var/lib/bcd/cred,' /usr/share/bcd/bcd-join.conf \
  >/etc/systemd/system/bcd.service.d/join.conf
systemctl daemon-reload
systemctl start bcd
rm /etc/bcd/join-token
systemctl restart bcd
bcd status
better-compute reserve --gpus 4 --for 1h --wait 60s
held=$(hold)

# Settings are read again by the same process.
before=$(main_pid bcd)
systemctl reload bcd bcd-placer
test "$(main_pid bcd)" = "$before"

# A daemon that is killed comes back; nothing of the hold is written again.
kill -9 "$before"
for _ in $(seq 100); do
  if test "$(main_pid bcd)" != "$before" && systemctl -q is-active bcd; then break; fi
  sleep 0.1
done
test "$(main_pid bcd)" != "$before"
systemctl -q is-active bcd
test "$(hold)" = "$held"

# An upgrade starts both programs again, and the hold stays as it is.
before=$(main_pid bcd) placer=$(main_pid bcd-placer)
dpkg -i /root/newer/*.deb
test "$(main_pid bcd)" != "$before"
test "$(main_pid bcd-placer)" != "$placer"
systemctl -q is-active bcd bcd-placer
test "$(hold)" = "$held"

# A daemon that somebody stopped and disabled stays so over an upgrade.
systemctl disable --now bcd
test "$(hold)" = "$held"
dpkg -i /root/newer/bcd_*.deb
if systemctl -q is-active bcd; then exit 1; fi

# Removed: stopped, and the hold stays. Installed again: it goes on where it was.
systemctl enable --now bcd
dpkg --remove bcd
test ! -e /usr/bin/bcd
test "$(hold)" = "$held"
dpkg -i /root/newer/bcd_*.deb
systemctl start bcd
test "$(hold)" = "$held"
bcd status
dpkg --purge bcd 2>&1 | grep 'are left'
test "$(hold)" = "$held"
