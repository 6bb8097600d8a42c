# The program in a root that holds nothing else but /etc/resolv.conf and its kubeconfig, as root of new namespaces.
# Variables: program, root, data, dns, resolved.
ip link set lo up
python3 "$dns" kubernetes.default.svc >"$resolved" &
dns_id=$!
"$program" up --no-node --no-mesh --listen 127.0.0.1:6443 --data-dir "$data" >"$data.out" 2>"$data.err" &
up_id=$!
trap 'kill $dns_id $up_id; wait' EXIT
tries=0
until grep -q ready "$resolved" && grep -q kubeconfig "$data.out"; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || { cat "$data.err"; exit 1; }
    sleep 0.1
done
sed 's,https://127.0.0.1:6443,https://kubernetes.default.svc:6443,' "$data/kubeconfig" >"$root/kubeconfig"
grep -q 'https://kubernetes.default.svc:6443' "$root/kubeconfig"

echo "== no nsswitch.conf"
chroot "$root" /zoneward expose web --port 80 --to 10.0.0.7:8080@zone-a --kubeconfig /kubeconfig
echo "== nsswitch.conf without dns"
echo 'hosts: files' >"$root/etc/nsswitch.conf"
chroot "$root" /zoneward plan slices -A --kubeconfig /kubeconfig
echo "== a name of /etc/hosts"
sed -i 's,kubernetes.default.svc,localhost,' "$root/kubeconfig"
echo '127.0.0.1 localhost' >"$root/etc/hosts"
chroot "$root" /zoneward plan slices -A --kubeconfig /kubeconfig
echo "== asked"
cat "$resolved"
